"""The whole job on the bundled model, shortened: what it leaves, and that a kill at any stage changes nothing."""
import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ["SCALEWRIGHT_BINARY"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recover")
    with open(ROOT / "examples/tiny/fixture/data/train.jsonl") as source:
        (folder / "train.jsonl").write_text("".join(source.readline() for _ in range(200)))
    tasks = folder / "tasks"
    tasks.mkdir()
    for name in ("copy", "sort"):
        with open(ROOT / f"examples/tiny/fixture/data/eval/{name}.jsonl") as source:
            (tasks / f"{name}.jsonl").write_text("".join(source.readline() for _ in range(6)))
    path = folder / "recover.yaml"
    path.write_text(f"""
model: {{path: {ROOT}/examples/tiny/fixture/model}}
data: {{train: {folder}/train.jsonl, seq_len: 96, validation_rows: 8, workers: 1}}
quantize: {{format: nvfp4, calibration_rows: 16}}
train: {{steps: 4, micro_batch: 8, global_batch: 8, lr: 1e-2}}
evaluate: {{tasks: {tasks}, every: 2, max_new_tokens: 24}}
""")
    return path


def recover(config, out, failpoints=None):
    environment = dict(os.environ)
    if failpoints:
        environment["SCALEWRIGHT_FAILPOINTS"] = failpoints
    return subprocess.run([BINARY, "recover", "-c", str(config), "-o", f"output.path={out}", "--json"], capture_output=True, text=True, timeout=300,
                          env=environment)


def result(out):
    """What must not depend on interruptions: the summary without its path, and every exported byte."""
    summary = json.loads((out / "summary.json").read_text())
    summary.pop("export")
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted((out / "export").iterdir())}
    return summary, files


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    done = recover(config, out)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["verified"] is True
    assert set(summary["bf16"]["tasks"]) == {"copy", "sort"}
    assert summary["ptq"]["fkl"] > 0 and summary["qad"]["fkl"] > 0
    assert (out / "export" / "model.safetensors").exists() and (out / "export" / "tokenizer.json").exists()
    return out


def test_a_finished_run_is_reported_again(config, whole):
    before = result(whole)
    assert recover(config, whole).returncode == 0
    assert result(whole) == before


@pytest.mark.parametrize("place", ["recover.bf16.done", "recover.ptq.done", "train.step@3", "recover.step_2.done", "recover.train.done", "export.publish",
                                   "recover.export.done"])
def test_a_kill_changes_nothing(config, whole, tmp_path, place):
    out = tmp_path / "run"
    name, _, visit = place.partition("@")
    killed = recover(config, out, f"{name}=kill" + (f"@{visit}" if visit else ""))
    assert killed.returncode == -9, killed.stderr
    done = recover(config, out)
    assert done.returncode == 0, done.stderr
    assert result(out) == result(whole)


def test_another_configuration_is_refused(config, whole):
    done = subprocess.run([BINARY, "recover", "-c", str(config), "-o", f"output.path={whole}", "-o", "train.lr=5e-3"], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 2
    assert "lr" in done.stderr
