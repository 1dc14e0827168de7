"""Nothing of the user's is ever lost or taken for something else; failures say what, with the right exit code, as one JSON document."""
import json
import os
import pathlib
import signal
import subprocess

import pytest
from waiting import wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SCALEWRIGHT_BINARY", str(ROOT / "build" / "scalewright"))
MODEL = ROOT / "tests" / "data" / "reference" / "qwen3"
FIXTURE = ROOT / "examples" / "tiny" / "fixture"


def run(*words, code=0):
    result = subprocess.run([BINARY, *map(str, words), "--threads", "1"], capture_output=True, text=True, cwd=ROOT, timeout=240)
    assert result.returncode == code, (result.returncode, result.stderr[-1500:])
    return result


def train_words(folder, *overrides, model=MODEL):
    options = [f"model.path={model}", f"output.path={folder}", "quantize.format=w4a16", "data.seq_len=16", "train.micro_batch=4", "train.steps=4", *overrides]
    return ["train", *(word for option in options for word in ("-o", option))]


@pytest.mark.parametrize("what", ["a folder of something else", "a file", "the model", "a model", "nothing named"])
def test_ptq_replaces_nothing_but_an_earlier_export(tmp_path, what):
    out = tmp_path / "out"
    model = MODEL
    if what == "a folder of something else":
        (out / "sub").mkdir(parents=True)
        (out / "thesis.txt").write_text("years of work")
    elif what == "a file":
        out.write_text("years of work")
    elif what in ("the model", "a model"):
        subprocess.run(["cp", "-r", str(MODEL), str(out)], check=True)
        model = out if what == "the model" else MODEL
    before = sorted((path.relative_to(tmp_path), path.read_bytes() if path.is_file() else None) for path in tmp_path.rglob("*"))
    for extra in ([], ["--dry-run"]):
        result = run("ptq", "--model", model, "--format", "w4a16", "--out", "" if what == "nothing named" else out, *extra, code=2)
        assert "left as it is" in result.stderr or "--out is empty" in result.stderr
    assert sorted((path.relative_to(tmp_path), path.read_bytes() if path.is_file() else None) for path in tmp_path.rglob("*")) == before


def test_ptq_replaces_an_earlier_export_and_says_so(tmp_path):
    run("ptq", "--model", MODEL, "--format", "w4a16", "--out", tmp_path / "out")
    assert "replacing an earlier export" in run("ptq", "--model", MODEL, "--format", "fp8", "--out", tmp_path / "out").stderr
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["format"] == "float-quantized"


def test_ptq_calibrates_on_the_training_data_of_a_configuration(tmp_path):
    options = [word for option in (f"model.path={FIXTURE / 'model'}", f"data.train={FIXTURE / 'data' / 'calib.jsonl'}", "quantize.format=nvfp4", "quantize.calibration_rows=4",
                                   "data.seq_len=64") for word in ("-o", option)]
    run("ptq", *options, "--out", tmp_path / "out")
    assert "needs calibration data" in run("ptq", "--model", FIXTURE / "model", "--format", "nvfp4", "--out", tmp_path / "no", "--dry-run", code=2).stderr


def test_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    folder = ROOT / "tests" / "data" / "reference" / "qwen3"
    run("parity", "--model", folder, "--expected", folder / "expected.safetensors", "--out", tmp_path / "pipe", code=6)
    assert (tmp_path / "pipe").is_fifo()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose second checkpoint is worse than its first: a learning rate that destroys."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    run(*train_words(folder, f"data.train={FIXTURE / 'data' / 'calib.jsonl'}", "data.seq_len=64", "train.steps=2", "train.save_every=1", "train.validate_every=1",
                     "train.keep_last=5", "train.lr=0.5", "data.max_samples=40", "data.validation_fraction=0.2", model=FIXTURE / "model"))
    return folder


def test_scales_of_a_run_are_evaluated(trained, tmp_path):
    run("export", "--run", trained, "--step", "2", "--out", tmp_path / "out")
    words = ["eval", "--model", FIXTURE / "model", "--tasks", FIXTURE / "data" / "eval", "--limit", "2", "--json"]
    by_scales = json.loads(run(*words, "--scales", trained / "checkpoints" / "step_2").stdout)
    by_export = json.loads(run(*words, "--quantized", tmp_path / "out").stdout)
    assert by_scales["tasks"] == by_export["tasks"] and by_scales["divergence"] == by_export["divergence"]
    run(*words, "--scales", trained)


def test_export_takes_the_best_checkpoint(trained, tmp_path):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if line["kind"] == "validation" and line["step"] > 0}
    report = json.loads(run("export", "--run", trained, "--out", tmp_path / "out", "--json").stdout)
    assert set(losses) == {1, 2} and losses[1] != losses[2]
    assert report["step"] == min(losses, key=losses.get)


def test_a_damaged_checkpoint_is_named(trained, tmp_path):
    copy = tmp_path / "run"
    subprocess.run(["cp", "-r", str(trained), str(copy)], check=True)
    shard = next((copy / "checkpoints" / "step_2").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:1000])
    result = run("export", "--run", copy, "--out", tmp_path / "out")
    assert "newer checkpoints are damaged" in result.stderr and "step 2:" in result.stderr


def test_an_edited_config_is_not_the_student(trained, tmp_path):
    run("export", "--run", trained, "--out", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    (tmp_path / "out" / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.01}))
    assert "rms_norm_eps is not the model's" in run("verify", "--quantized", tmp_path / "out", "--run", trained, code=1).stderr


def test_two_runs_do_not_share_a_folder(tmp_path):
    first = subprocess.Popen([BINARY, *train_words(tmp_path / "run", "train.steps=100000"), "--threads", "1"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(tmp_path / "run" / "metrics.jsonl")
    assert "another job works in this run directory" in run(*train_words(tmp_path / "run"), code=2).stderr
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == 75


@pytest.mark.parametrize("words,code", [(["ptq", "--format", "w4a16", "--out", "{tmp}/out", "--model", "{tmp}/loop"], 3), (["inspect", "{tmp}/loop"], 3),
                                        (["ptq", "--format", "w4a16", "--out", "{tmp}/out", "--model", "{tmp}/" + 300 * "x"], 3),
                                        (train_words("{tmp}/file"), 6), (train_words("{tmp}/file/x"), 6), (train_words("{tmp}/" + 300 * "x"), 6),
                                        (train_words("{tmp}/run", "data.train={tmp}/pipe"), 3), (train_words("{tmp}/run", "train.lr=1e300"), 2),
                                        (train_words("{tmp}/run", "train.micro_batch=1000000000"), 2)])
def test_odd_paths_and_numbers_are_the_users_errors(tmp_path, words, code):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    result = run(*(str(word).replace("{tmp}", str(tmp_path)) for word in words), "--json", code=code)
    assert json.loads(result.stdout)["exit_code"] == code and "internal error" not in result.stderr
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("words", [["ptq", "--model", MODEL, "--format", "w4a16", "--out", "{tmp}/out"], ["launch", "--nproc", "2", "--", "doctor"],
                                   ["parity", "--model", MODEL, "--expected", MODEL / "expected.safetensors"], train_words("{tmp}/run"),
                                   ["eval", "--model", FIXTURE / "model", "--tasks", FIXTURE / "data" / "eval"],
                                   ["generate", "--model", FIXTURE / "model", "--prompt", "hello"], ["recover", "-c", ROOT / "examples" / "tiny" / "recover.yaml"]])
def test_a_dry_run_is_one_document_too(tmp_path, words):
    words = [str(word).replace("{tmp}", str(tmp_path)) for word in words]
    at = words.index("--") if "--" in words else len(words)
    result = subprocess.run([BINARY, *words[:at], "--dry-run", "--json", *words[at:]], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert result.returncode == 0 and json.loads(result.stdout)["dry_run" if "train" not in words else "steps"], result.stderr
    assert list(tmp_path.iterdir()) == []


def test_recover_stopped_between_stages_says_75(tmp_path):
    process = subprocess.Popen([BINARY, "recover", "-c", "examples/tiny/recover.yaml", "-o", f"output.path={tmp_path / 'run'}", "--json", "--threads", "1"], cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "run" / "config.yaml")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 75 and json.loads(output)["exit_code"] == 75
