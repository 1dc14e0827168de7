"""The train command as a program: what it prints and writes, how it stops, and that it goes on where it stopped."""
import hashlib
import json
import os
import pathlib
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SCALEWRIGHT_BINARY", str(ROOT / "build" / "scalewright"))
MODEL = ROOT / "tests/data/reference/qwen3_moe"

CONFIG = """
model: {{path: {model}, dtype: float32}}
data: {{seq_len: 16, max_samples: 64}}
quantize: {{format: w4a16}}
train: {{steps: 6, micro_batch: 4, lr: 1e-2, log_every: 2, save_every: 2, keep_last: 9}}
output: {{path: {run}}}
"""


def write_config(folder, run="run"):
    path = folder / f"{run}.yaml"
    path.write_text(CONFIG.format(model=MODEL, run=folder / run))
    return path


def train(*arguments, failpoints="", check=0):
    result = subprocess.run([BINARY, "train", "--threads", "1", *map(str, arguments)], capture_output=True, text=True, timeout=300,
                            env=os.environ | {"SCALEWRIGHT_FAILPOINTS": failpoints})
    assert result.returncode == check, result.stderr
    return result


def shard(folder, step):
    return hashlib.sha256((folder / f"checkpoints/step_{step}/shard_00000.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    result = train("-c", write_config(folder), "--json")
    return folder / "run", result


def test_writes_and_says_what_it_did(whole):
    run, result = whole
    report = json.loads(result.stdout)
    assert report["steps"] == 6 and report["resumed_from"] == 0 and report["skipped"] == 0
    assert report["validation"]["fkl"] < report["validation_before"]["fkl"]
    assert report["checkpoint"] == str(run / "checkpoints/step_6")
    for name in ["config.yaml", "metrics.jsonl", "checkpoints/LATEST", "checkpoints/step_2/manifest.json"]:
        assert (run / name).exists(), name
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))
    line = next(line for line in result.stderr.splitlines() if "iter 4/6" in line)
    for part in ["loss", "lm", "fkl", "rkl", "cakld", "gnorm", "lr", "tok/s", "TFLOP/s", "elapsed", "eta", "mem"]:
        assert part in line, line
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics if m["kind"] == "train"] == [2, 4, 6]
    assert [m["step"] for m in metrics if m["kind"] == "validation"] == [0, 6]


def test_written_configuration_reads_back(whole):
    run, _ = whole
    assert train("-c", run / "config.yaml", "--json").stdout.count('"resumed_from": 6') == 1


def test_killed_anywhere_it_ends_with_the_same_bits(whole, tmp_path):
    run, _ = whole
    config = write_config(tmp_path)
    for failpoint in ["train.step=kill@2", "train.step=kill@4", "train.saved=kill", "train.step=kill@2"]:
        train("-c", config, failpoints=failpoint, check=-signal.SIGKILL)
    train("-c", config)
    assert shard(tmp_path / "run", 6) == shard(run, 6)


def test_a_stop_exits_75_and_continues(whole, tmp_path):
    run, _ = whole
    config = write_config(tmp_path)
    stopped = train("-c", config, failpoints="train.step=stop@3", check=75)
    assert "SIGTERM after step 3 of 6" in stopped.stderr and "run the same command again" in stopped.stderr
    assert json.loads(train("-c", config, "--json").stdout)["resumed_from"] == 3
    assert shard(tmp_path / "run", 6) == shard(run, 6)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_real_signal_during_a_long_run(tmp_path, number):
    config = write_config(tmp_path)
    process = subprocess.Popen([BINARY, "train", "--threads", "1", "-c", str(config), "-o", "train.steps=1000000", "-o", "train.save_every=0"],
                               stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "iter 2/" in line:
            break
    process.send_signal(number)
    assert "run the same command again" in process.stderr.read()
    assert process.wait(timeout=60) == 75
    assert len(list((tmp_path / "run/checkpoints").glob("step_*/manifest.json"))) == 1


def test_another_configuration_is_refused_by_key(whole):
    run, _ = whole
    before = (run / "config.yaml").read_bytes()
    refused = train("-c", run / "config.yaml", "-o", "train.lr=0.5", "-o", "train.loss.type=rkl", check=2)
    assert "train.lr: was 0.01, is 0.5" in refused.stderr and "train.loss.type" in refused.stderr
    assert (run / "config.yaml").read_bytes() == before
    other_data = train("-c", run / "config.yaml", "-o", "data.max_samples=60", check=3)
    assert "the training data" in other_data.stderr
    never = train("-c", run / "config.yaml", "-o", "train.resume=never", check=2)
    assert "move that folder aside" in never.stderr


def test_starts_from_the_scales_of_another_run(whole, tmp_path):
    run, first = whole
    config = write_config(tmp_path)
    result = train("-c", config, "-o", f"quantize.init_scales={run}", "--json")
    assert json.loads(result.stdout)["validation_before"] == json.loads(first.stdout)["validation"]
    pickle = tmp_path / "scales_rank0.pt"
    pickle.write_bytes(b"PK\x03\x04")
    refused = train("-c", write_config(tmp_path, run="other"), "-o", f"quantize.init_scales={pickle}", check=3)
    assert "pickle" in refused.stderr and not (tmp_path / "other/checkpoints").exists()


def test_dry_run_writes_nothing(tmp_path):
    result = train("-c", write_config(tmp_path), "--dry-run")
    assert "would train" in result.stdout and not (tmp_path / "run").exists()


def test_missing_paths_are_user_errors(tmp_path):
    assert "model.path" in train("-o", "output.path=x", check=2).stderr
    assert "output.path" in train("-o", f"model.path={MODEL}", check=2).stderr


def test_mcore_qad_yaml_runs_unchanged(tmp_path):
    text = (ROOT / "examples/tiny/mcore_qad.yaml").read_text()
    config = tmp_path / "mcore_qad.yaml"
    config.write_text(text)
    result = subprocess.run([BINARY, "train", "-c", str(config), "--save-path", str(tmp_path / "run"), "--json"], capture_output=True, text=True,
                            timeout=300, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 4
    assert "numerics: mcore_qad" in (tmp_path / "run/config.yaml").read_text()
    for name in ["scales_rank0.safetensors", "angelslim_config.json"]:
        assert (tmp_path / "run" / name).exists(), name
