"""plan: layouts of large models from config.json alone, and that its counts are those of the program that runs."""
import json
import os
import pathlib
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SCALEWRIGHT_BINARY", str(ROOT / "build" / "scalewright"))
REFERENCE = ROOT / "tests" / "data" / "reference"
# Qwen3-235B-A22B's published sizes.
LARGE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu",
         "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960, "mlp_only_layers": [], "moe_intermediate_size": 1536, "norm_topk_prob": True,
         "num_attention_heads": 64, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 94, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
         "rope_theta": 1000000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 151936}


def plan(*words, code=0):
    result = subprocess.run([BINARY, "plan", "--json", *map(str, words)], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert result.returncode == code, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def large(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    return tmp_path


def test_a_large_model_on_64_ranks_takes_a_second(large):
    start = time.time()
    document = plan("-o", f"model.path={large}", "-o", "train.micro_batch=1", "-o", "train.global_batch=64", "--world", 64, "--memory", "80GB")
    assert time.time() - start < 10   # alone about a second; this machine is shared
    assert document["fits"] and len(document["ranks"]) == 64
    assert document["candidates"][0]["layout"] == document["layout"]
    seconds = [candidate["seconds"] for candidate in document["candidates"] if candidate["fits"]]
    assert seconds == sorted(seconds) and seconds
    for rank in document["ranks"]:
        assert rank["bytes"]["total"] == pytest.approx(sum(value for name, value in rank["bytes"].items() if name != "total"), abs=10)
        assert all(rank["rank"] in group for group in rank["groups"].values())


def test_every_rank_holds_a_share_and_together_the_model(large):
    document = plan("-o", f"model.path={large}", "-o", "train.micro_batch=1", "-o", "train.global_batch=64", "--world", 64, "--tp", 4, "--ep", 8, "--pp", 8, "--cp", 1)
    assert document["layout"] == {"tp": 4, "ep": 8, "cp": 1, "pp": 8, "dp": 2}
    layers = sorted({tuple(rank["layers"]) for rank in document["ranks"]})
    assert layers[0][0] == 0 and layers[-1][1] == 94 and all(a[1] == b[0] for a, b in zip(layers, layers[1:]))
    experts = sorted({tuple(rank["experts"]) for rank in document["ranks"]})
    assert len(experts) == 8 and experts[0][0] == 0 and experts[-1][1] == 128


def test_auto_takes_the_fewest_ranks_that_fit(large):
    document = plan("-o", f"model.path={large}", "-o", "train.micro_batch=1", "-o", "train.global_batch=256", "--memory", "80GB")
    assert document["fits"] and document["world"] > 1
    fewer = plan("-o", f"model.path={large}", "-o", "train.micro_batch=1", "-o", "train.global_batch=256", "--memory", "80GB", "--world", document["world"] // 2, code=1)
    assert not fewer["fits"]


@pytest.mark.parametrize("model,layout,world", [("qwen3_moe", {"tp": 2, "ep": 2}, 2), ("hy_v3", {"tp": 2, "pp": 2}, 4), ("llama", {"tp": 4}, 4)])
def test_parameters_are_those_of_the_ranks_that_run(model, layout, world):
    folder = REFERENCE / model
    flags = [word for name, degree in layout.items() for word in (f"--{name}", str(degree))]
    document = plan("-o", f"model.path={folder}", "-o", "quantize.format=fp8", "--world", world, *flags, *(["--ep", "1"] if "ep" not in layout else []), "--cp", "1",
                    *(["--pp", "1"] if "pp" not in layout else []))
    run = subprocess.run([BINARY, "launch", "--nproc", str(world), "--", "parity", "--model", str(folder), "--expected", str(folder / "expected.safetensors"), "--threads", "1",
                          "--json", *flags], capture_output=True, text=True, timeout=120)
    assert [rank["parameters"] for rank in document["ranks"]] == json.loads(run.stdout)["local_parameters"]


def test_a_layout_that_does_not_fit_says_which_number():
    folder = REFERENCE / "qwen3_moe"
    result = subprocess.run([BINARY, "plan", "-o", f"model.path={folder}", "--world", "3", "--tp", "3"], capture_output=True, text=True)
    assert result.returncode == 2 and "4 heads" in result.stderr
    result = subprocess.run([BINARY, "plan", "-o", f"model.path={folder}", "--world", "some"], capture_output=True, text=True)
    assert result.returncode == 2 and "--world some" in result.stderr


def random_model(folder, hidden=256, layers=2, experts=8, inner=128, vocabulary=4096, heads=4, kv=2, width=64):
    """A Qwen3-MoE of random weights, large enough that its memory is that of its tensors."""
    import torch
    from safetensors.torch import save_file

    config = {**LARGE, "head_dim": width, "hidden_size": hidden, "moe_intermediate_size": inner, "num_attention_heads": heads, "num_experts": experts, "num_experts_per_tok": 2,
              "num_hidden_layers": layers, "num_key_value_heads": kv, "vocab_size": vocabulary}
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(1)
    tensors = {}

    def add(name, *shape):
        tensors[name] = (torch.randn(shape, generator=generator) * 0.05).to(torch.bfloat16)

    add("model.embed_tokens.weight", vocabulary, hidden)
    add("lm_head.weight", vocabulary, hidden)
    add("model.norm.weight", hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            add(f"{prefix}{name}.weight", hidden)
        for name in ("q_norm", "k_norm"):
            add(f"{prefix}self_attn.{name}.weight", width)
        for name, rows in (("q", heads * width), ("k", kv * width), ("v", kv * width)):
            add(f"{prefix}self_attn.{name}_proj.weight", rows, hidden)
        add(f"{prefix}self_attn.o_proj.weight", hidden, heads * width)
        add(f"{prefix}mlp.gate.weight", experts, hidden)
        for expert in range(experts):
            for name in ("gate", "up"):
                add(f"{prefix}mlp.experts.{expert}.{name}_proj.weight", inner, hidden)
            add(f"{prefix}mlp.experts.{expert}.down_proj.weight", hidden, inner)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_planned_memory_is_what_the_ranks_take(tmp_path):
    (tmp_path / "model").mkdir()
    model = random_model(tmp_path / "model")
    for i, (layout, world, format, micro) in enumerate([([], 1, "nvfp4", 4), ([], 2, "w8a8", 2), (["--tp", "2"], 2, "nvfp4", 4), (["--ep", "2"], 2, "w4a16", 2), (["--cp", "2"], 2, "nvfp4", 4),
                                                        (["--pp", "2"], 2, "fp8", 4)]):
        words = ["--dtype", "float32", "--threads", "1", *layout]
        for key, value in {"model.path": model, "quantize.format": format, "train.steps": 1, "train.log_every": 1, "train.micro_batch": micro, "train.global_batch": 8, "data.seq_len": 256,
                           "data.max_samples": 32, "data.validation_fraction": 0, "output.path": tmp_path / f"run{i}"}.items():
            words += ["-o", f"{key}={value}"]
        launch = ["launch", "--nproc", str(world), "--"] if world > 1 else []
        trained = subprocess.run([BINARY, *launch, "train", *map(str, words)], capture_output=True, text=True, cwd=ROOT, timeout=240)
        assert trained.returncode == 0, trained.stderr
        lines = [json.loads(line) for line in (tmp_path / f"run{i}" / "metrics.jsonl").read_text().splitlines()]
        measured = [line["tensor_memory"] for line in lines if line["kind"] == "train"][-1]
        planned = max(rank["bytes"]["total"] for rank in plan(*words, "--world", world)["ranks"])
        # Allocations in the middle of an operation and mapped embeddings are not told apart more finely.
        assert 0.9 < planned / measured < 1.1, (layout, format, planned, measured)
