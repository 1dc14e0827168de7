"""parity against transformers and the quantizers' known answers (tests/data/reference, made by make_reference.py there)."""
import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "tests" / "data" / "reference"
BINARY = os.environ["SCALEWRIGHT_BINARY"]
MOE = ["hy_v3", "qwen3_moe", "qwen3_moe_deep", "qwen3_moe_mixed"]
FORMATS = ["nvfp4", "nvfp4a16", "w4a16", "w8a8", "fp8", "w4afp8"]


def parity(case, *arguments):
    folder = REFERENCE / case
    command = [BINARY, "parity", "--model", str(folder), "--expected", str(folder / "expected.safetensors"), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", MOE + ["llama", "qwen2", "qwen3"])
def test_model_equals_transformers(case):
    got = parity(case, "--dtype", "float64")
    # Both sides compute in float64: 1e-8 leaves room for another order of sums only.
    assert got["logits"]["rel_l2"] < 1e-8
    assert abs(got["lm_loss"]["got"] / got["lm_loss"]["want"] - 1) < 1e-8


@pytest.mark.parametrize("case", MOE[:2] + ["llama"])
def test_float32_is_near(case):
    got = parity(case, "--dtype", "float32")
    assert got["logits"]["rel_l2"] < 1e-5  # float32 rounding over a few layers


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("case", MOE)
def test_student_and_its_gradients(case, format_):
    got = parity(case, "--dtype", "float64", "--format", format_, "--grad")
    assert got["numerics"] == "mcore_qad"
    # The reference rounds inputs of unquantized activations to float32, hence 1e-6; float32 sums inside its quantizers, hence 1e-4.
    assert got["logits"]["rel_l2"] < 1e-6
    for name, value in got["losses"].items():
        assert abs(value["got"] / value["want"] - 1) < 1e-6, name
    assert len(got["grads"]) >= 8
    for name, value in got["grads"].items():
        assert value["rel_l2"] < 1e-4, name


def test_a_difference_is_an_exit_code(tmp_path):
    folder = REFERENCE / "llama"
    command = [BINARY, "parity", "--model", str(folder), "--expected", str(folder / "expected.safetensors"), "--dtype", "float32", "--tolerance", "1e-12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "tolerance" in done.stderr
