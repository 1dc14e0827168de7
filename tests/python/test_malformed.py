"""Malformed inputs: each ends with the right exit code, a message that names file and cause, and nothing half-written."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SCALEWRIGHT_BINARY", str(ROOT / "build" / "scalewright"))
REFERENCE = ROOT / "tests" / "data" / "reference" / "qwen3_moe"
FIXTURE = ROOT / "examples" / "tiny" / "fixture"
USAGE, DATA = 2, 3
Q = "model.layers.0.self_attn.q_proj.weight"
EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"


class Model:
    """A folder with the reference model, to be broken."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(REFERENCE / name, folder / name)

    def config(self, **changes):
        """Keys set, or removed where None."""
        path = self.folder / "config.json"
        keys = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in keys.items() if v is not None or k not in changes}, indent=1))

    def tensors(self, change):
        path = self.folder / "model.safetensors"
        tensors = {k: v.clone() for k, v in load_file(path).items()}
        change(tensors)
        save_file(tensors, path)

    def shard(self, parts=3):
        """The tensors over several files; returns the index."""
        tensors = load_file(self.folder / "model.safetensors")
        (self.folder / "model.safetensors").unlink()
        index = {"metadata": {}, "weight_map": {}}
        for part in range(parts):
            name = f"model-{part + 1:05}-of-{parts:05}.safetensors"
            mine = {k: v for i, (k, v) in enumerate(sorted(tensors.items())) if i % parts == part}
            save_file(mine, self.folder / name)
            index["weight_map"] |= {k: name for k in mine}
        self.index(index)
        return index

    def index(self, index):
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index))

    def truncate(self, name, size):
        path = self.folder / name
        os.truncate(path, size if size >= 0 else path.stat().st_size + size)


def patched(name, value):
    def change(tensors):
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value(tensors[name]) if callable(value) else value
    return lambda model: model.tensors(change)


def with_value(row, column, value):
    def change(tensor):
        tensor[row, column] = value
        return tensor
    return change


def missing_shard(model):
    model.shard()
    (model.folder / "model-00002-of-00003.safetensors").unlink()


def truncated_shard(model):
    model.shard()
    model.truncate("model-00003-of-00003.safetensors", -100)


def escaping_index(model):
    index = model.shard()
    index["weight_map"][Q] = "../model.safetensors"
    model.index(index)


def wrong_shard(model):
    index = model.shard()
    index["weight_map"][Q] = next(s for s in index["weight_map"].values() if s != index["weight_map"][Q])
    model.index(index)


def duplicate_tensor(model):
    index = model.shard()
    home = index["weight_map"][Q]
    other = model.folder / next(s for s in index["weight_map"].values() if s != home)
    save_file(load_file(other) | {Q: load_file(model.folder / home)[Q]}, other)


def header(model):
    """The file's header says more bytes than there are."""
    path = model.folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[:8] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(data)


def narrow_experts(model):
    def change(tensors):
        for name in list(tensors):
            if ".experts." in name:
                tensors[name] = (tensors[name][:, :72] if "down_proj" in name else tensors[name][:72]).contiguous()
    model.config(moe_intermediate_size=72)
    model.tensors(change)


# Name: (how the model is broken, what the message must say).
MODELS = {
    "no_config": (lambda m: (m.folder / "config.json").unlink(), ["model", "config.json"]),
    "config_is_not_json": (lambda m: (m.folder / "config.json").write_text('{"model_type": '), ["config.json"]),
    "unknown_model_type": (lambda m: m.config(model_type="qwen3_mo"), ["config.json", "qwen3_mo", "hy_v3, llama, qwen2, qwen3, qwen3_moe", "nearest is qwen3_moe"]),
    "missing_key": (lambda m: m.config(hidden_size=None), ["config.json", "hidden_size is missing"]),
    "hostile_size": (lambda m: m.config(num_hidden_layers=2**62), ["config.json", "num_hidden_layers", "10000"]),
    "contradictory_keys": (lambda m: m.config(num_experts=16), ["config.json", "num_experts is 16", "num_local_experts is 8"]),
    "other_activation": (lambda m: m.config(hidden_act="gelu"), ["config.json", "hidden_act", "silu"]),
    "other_rope": (lambda m: m.config(rope_parameters={"rope_type": "dynamic", "factor": 2.0}), ["config.json", "dynamic", "llama3"]),
    "quantized_already": (lambda m: m.config(quantization_config={"quant_method": "fp8"}), ["config.json", "quantization_config", "hint"]),
    "too_few_layers_in_files": (lambda m: m.config(num_hidden_layers=3), ["missing", "model.layers.2.input_layernorm.weight"]),
    "no_weights": (lambda m: (m.folder / "model.safetensors").unlink(), ["model.safetensors"]),
    "missing_shard": (missing_shard, ["model-00002-of-00003.safetensors"]),
    "truncated_file": (lambda m: m.truncate("model.safetensors", -100), ["model.safetensors"]),
    "truncated_shard": (truncated_shard, ["model-00003-of-00003.safetensors"]),
    "empty_file": (lambda m: m.truncate("model.safetensors", 0), ["model.safetensors"]),
    "hostile_header": (header, ["model.safetensors"]),
    "escaping_index": (escaping_index, ["model.safetensors.index.json", "../model.safetensors"]),
    "wrong_shard": (wrong_shard, ["model.safetensors.index.json", "in the wrong shard (1)", Q]),
    "duplicate_tensor": (duplicate_tensor, [Q, "in two shards"]),
    "missing_tensor": (patched(Q, None), ["missing (1)", Q]),
    "left_over_tensor": (patched("model.layers.0.extra.weight", torch.ones(2)), ["left over (1)", "model.layers.0.extra.weight (in model.safetensors)"]),
    "wrong_shape": (patched(Q, lambda t: t[:64].contiguous()), ["wrong shape (1)", Q, "[64, 128]", "[128, 128]"]),
    "wrong_dtype": (patched(Q, lambda t: t.to(torch.int8)), ["wrong dtype (1)", Q, "I8"]),
    "nan_weight": (patched(EXPERT, with_value(5, 6, float("nan"))), ["model.safetensors", EXPERT, "[5, 6]", "nan"]),
    "infinite_weight": (patched(Q, with_value(1, 2, float("inf"))), ["model.safetensors", Q, "[1, 2]", "inf"]),
    "indivisible_dimension": (narrow_experts, ["nvfp4", "16", "model.layers.0.mlp.experts.0.down_proj", "72"]),
}


def run(*words, **environment):
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, timeout=120)


def parity(model, out):
    return run("parity", "--model", model, "--expected", REFERENCE / "input.safetensors", "--format", "nvfp4", "--out", out)


def ptq(model, out):
    return run("ptq", "--model", model, "--format", "nvfp4", "--calib", REFERENCE / "input.safetensors", "--out", out)


def train_config(folder, model, out, **sections):
    keys = {"model": {"path": str(model)}, "output": {"path": str(out)}, "train": {"steps": 2, "micro_batch": 2}, "data": {"seq_len": 16}}
    for section, values in sections.items():
        keys[section] = keys.get(section, {}) | values
    path = folder / "run.yaml"
    path.write_text(json.dumps(keys))   # JSON is YAML
    return path


def train(model, out):
    return run("train", "-c", train_config(out.parent, model, out))


def assert_failed(result, code, parts):
    assert result.returncode == code, result.stderr
    for part in parts:
        assert part in result.stderr, f"no {part!r} in:\n{result.stderr}"
    assert result.stdout == ""
    assert "internal error" not in result.stderr and "terminate called" not in result.stderr


def assert_nothing_half_written(out):
    """Neither results nor leftovers; a run directory may hold what was whole before the failure (prepared data, the log)."""
    for path in [out, *out.rglob("*")] if out.is_dir() else []:
        assert ".tmp-" not in path.name, path
    assert not out.is_file()
    for name in ("config.json", "quant_summary.json", "checkpoints", "export", "ptq"):
        assert not (out / name).exists(), name
    assert not list(out.glob("*.safetensors"))
    assert not [p for p in out.parent.iterdir() if ".tmp-" in p.name]


@pytest.mark.parametrize("command", [parity, ptq, train])
@pytest.mark.parametrize("case", MODELS)
def test_a_broken_model_is_refused(case, command, tmp_path):
    break_model, parts = MODELS[case]
    model = Model(tmp_path / "model")
    break_model(model)
    out = tmp_path / "out"
    assert_failed(command(model.folder, out), DATA, parts)
    assert_nothing_half_written(out)


def test_a_model_that_is_not_there(tmp_path):
    for command in (parity, ptq, train):
        assert_failed(command(tmp_path / "none", tmp_path / "out"), DATA, ["none", "no such folder"])
        assert_nothing_half_written(tmp_path / "out")


def test_config_typos_are_told_all_at_once_with_line_and_suggestion(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"model:\n  path: {REFERENCE}\nquantize:\n  fromat: nvfp4\ntrain:\n  stpes: 3\n  lr: fast\noutput:\n  path: {tmp_path / 'out'}\n")
    assert_failed(run("train", "-c", path), USAGE, ["run.yaml:4:", "fromat", "format", "run.yaml:6:", "stpes", "steps", "run.yaml:7:", "fast"])
    assert not (tmp_path / "out").exists()


def test_an_unknown_format_is_refused_with_the_nearest(tmp_path):
    out = tmp_path / "out"
    for result in (run("parity", "--model", REFERENCE, "--expected", REFERENCE / "input.safetensors", "--format", "nvpf4"),
                   run("ptq", "--model", REFERENCE, "--format", "nvpf4", "--calib", REFERENCE / "input.safetensors", "--out", out),
                   run("train", "-c", train_config(tmp_path, REFERENCE, out, quantize={"format": "nvpf4"}))):
        assert_failed(result, USAGE, ["nvpf4", "nvfp4", "w4afp8"])
    assert not out.exists()


def test_a_skip_pattern_without_a_match_is_refused(tmp_path):
    config = train_config(tmp_path, REFERENCE, tmp_path / "out", quantize={"skip": ["*.q_porj"]})
    assert_failed(run("train", "-c", config), USAGE, ["*.q_porj", "model.layers.0.self_attn.q_proj"])
    assert not (tmp_path / "out").exists()


def test_data_that_is_not_there_or_empty_is_refused(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    for name in (empty, tmp_path / "none.jsonl"):
        config = train_config(tmp_path, FIXTURE / "model", tmp_path / "out", data={"train": [str(name)]})
        assert_failed(run("train", "-c", config), DATA, [name.name])
        assert_nothing_half_written(tmp_path / "out")


def test_data_without_a_good_line_is_refused(tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"messages": \n[1]\n{"mesages": []}\n')
    config = train_config(tmp_path, FIXTURE / "model", tmp_path / "out", data={"train": [str(bad)]})
    assert_failed(run("train", "-c", config), DATA, ["bad.jsonl"])
    assert_nothing_half_written(tmp_path / "out")


def test_text_without_a_tokenizer_is_refused(tmp_path):
    config = train_config(tmp_path, REFERENCE, tmp_path / "out", data={"train": [str(FIXTURE / "data" / "train.jsonl")]})
    assert_failed(run("train", "-c", config), DATA, ["tokenizer", str(REFERENCE)])
    assert_nothing_half_written(tmp_path / "out")


@pytest.mark.parametrize("change, part", [
    (lambda t: t.pop("labels"), "labels"),
    (lambda t: t.update(input_ids=t["input_ids"] + 400), "0..383"),
    (lambda t: t.update(labels=t["labels"][:, :-1].contiguous()), "shape"),
])
def test_answers_that_do_not_fit_the_model_are_refused(change, part, tmp_path):
    tensors = load_file(REFERENCE / "input.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "answers.safetensors")
    result = run("parity", "--model", REFERENCE, "--expected", tmp_path / "answers.safetensors", "--out", tmp_path / "out.safetensors")
    assert_failed(result, DATA, ["answers.safetensors", part])
    assert not (tmp_path / "out.safetensors").exists()


def test_the_models_that_are_broken_here_are_good_before(tmp_path):
    """Otherwise the tests above could pass for a reason of their own."""
    model = Model(tmp_path / "model")
    assert parity(model.folder, tmp_path / "one.safetensors").returncode == 0
    model.shard()
    assert parity(model.folder, tmp_path / "three.safetensors").returncode == 0
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "three.safetensors").read_bytes()
