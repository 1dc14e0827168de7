"""Our reading and writing of safetensors against the official package."""

import json
import os
import struct
import subprocess

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

BINARY = os.environ["SCALEWRIGHT_BINARY"]
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
    "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def inspect(path, *options):
    return subprocess.run([BINARY, "inspect", str(path), *options], capture_output=True, text=True, timeout=60)


def inspect_json(path):
    result = inspect(path, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def refused(path):
    """A data error that names the path, also in the one JSON document on standard output."""
    result = inspect(path, "--json")
    assert result.returncode == 3
    assert str(path) in result.stderr
    document = json.loads(result.stdout)
    assert document["exit_code"] == 3 and str(path) in document["error"]


def sample_tensors():
    tensors = {}
    for name, dtype in DTYPES.items():
        tensors[f"{name}.matrix"] = torch.arange(15).reshape(3, 5).remainder(2).to(dtype)
        tensors[f"{name}.scalar"] = torch.tensor(1).to(dtype)
        tensors[f"{name}.empty"] = torch.zeros(0, 4).to(dtype)
    return tensors


def test_inspect_tells_what_the_package_wrote(tmp_path):
    tensors = sample_tensors()
    path = tmp_path / "a.safetensors"
    save_file(tensors, path, metadata={"format": "pt", "note": "ünïcode"})
    document = inspect_json(path)
    assert document["kind"] == "safetensors"
    assert document["metadata"] == {"format": "pt", "note": "ünïcode"}
    assert document["file_bytes"] == path.stat().st_size
    told = {tensor["name"]: tensor for tensor in document["tensors"]}
    assert told.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert told[name]["dtype"] == name.split(".")[0]
        assert told[name]["shape"] == list(tensor.shape)
        assert told[name]["bytes"] == tensor.nbytes
    assert document["elements"] == sum(tensor.numel() for tensor in tensors.values())
    assert document["bytes"] == sum(tensor.nbytes for tensor in tensors.values())


def test_the_table_folds_numbered_names(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({f"layers.{i}.weight": torch.zeros(2, 3) for i in range(12)} | {"norm": torch.zeros(3)}, path)
    result = inspect(path)
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["layers.*.weight", "12", "F32", "[2,", "3]", "288", "B"] in rows
    assert ["norm", "1", "F32", "[3]", "12", "B"] in rows


def test_a_dtype_that_we_do_not_know_is_named(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"odd": torch.zeros(2, dtype=torch.complex64)}, path)
    result = inspect(path)
    assert result.returncode == 3
    assert "odd" in result.stderr and "C64" in result.stderr and str(path) in result.stderr


@pytest.mark.parametrize("cut", [0, 7, 8, 40, -1])
def test_truncated_files_are_refused_by_both(tmp_path, cut):
    path = tmp_path / "a.safetensors"
    save_file({"x": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(Exception):
        load_file(path)
    refused(path)


def test_the_official_package_reads_what_we_wrote(tmp_path):
    """parity --out is our writer; the package must take the file, and its header must be the format's own."""
    reference = os.path.join(os.path.dirname(__file__), "..", "data", "reference", "llama")
    path = tmp_path / "out.safetensors"
    result = subprocess.run([BINARY, "parity", "--model", reference, "--expected", os.path.join(reference, "input.safetensors"), "--dtype", "float64",
                             "--out", str(path), "--json"], capture_output=True, text=True, timeout=300)  # fmt: skip
    assert result.returncode == 0, result.stderr
    ours = load_file(path)
    told = {tensor["name"]: tensor for tensor in inspect_json(path)["tensors"]}
    assert told.keys() == ours.keys() and "logits" in ours
    for name, tensor in ours.items():
        assert told[name]["shape"] == list(tensor.shape)
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    assert (8 + length) % 8 == 0
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == set(ours)


def test_inspect_knows_a_model_folder(tmp_path):
    reference = os.path.join(os.path.dirname(__file__), "..", "data", "reference", "qwen3_moe")
    document = inspect_json(reference)
    assert document["kind"] == "model"
    assert document["config"]["model_type"] == "qwen3_moe"
    assert document["quantization"] is None
    with safe_open(os.path.join(reference, "model.safetensors"), "pt") as file:
        assert {tensor["name"] for tensor in document["tensors"]} == set(file.keys())


def test_inspect_knows_a_compressed_tensors_export(tmp_path):
    weights = {"dynamic": False, "group_size": 16, "num_bits": 4, "strategy": "tensor_group", "symmetric": True, "type": "float"}
    config = {
        "model_type": "llama",
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"format": "nvfp4-pack-quantized", "targets": ["Linear"], "weights": weights, "input_activations": None}},
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a.weight_packed": torch.zeros(4, 8, dtype=torch.uint8), "a.weight_scale": torch.ones(4, 1).to(torch.float8_e4m3fn),
               "lm_head.weight": torch.zeros(4, 16, dtype=torch.bfloat16)}, tmp_path / "model-00001-of-00001.safetensors")  # fmt: skip
    names = ["a.weight_packed", "a.weight_scale", "lm_head.weight"]
    index = {"metadata": {"total_size": 164}, "weight_map": {name: "model-00001-of-00001.safetensors" for name in names}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    quantization = inspect_json(tmp_path)["quantization"]
    assert quantization["format"] == "nvfp4-pack-quantized"
    assert quantization["ignore"] == ["lm_head"]
    assert quantization["groups"] == [{"name": "group_0", "format": "nvfp4-pack-quantized", "targets": ["Linear"], "weights": weights, "input_activations": None}]
    assert quantization["quantized_modules"] == 1
    text = inspect(tmp_path).stdout
    assert "4-bit float, tensor_group, groups of 16" in text and "lm_head" in text


def test_inspect_names_what_it_cannot_read(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "none", tmp_path / "empty"):
        refused(path)
