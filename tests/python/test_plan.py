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
