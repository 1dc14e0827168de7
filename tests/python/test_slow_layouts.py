"""Every layout with every format: one process's losses and scales over 20 steps, and the reference answers."""
import pytest
from test_layouts import BITWISE, expect_same_bits, expect_same_run, parity, train

LAYOUTS = ["dp2", "dp4", "tp2", "tp4", "ep2", "ep4", "ep2on4", "cp2", "cp4", "pp2", "tp2dp2", "tp2ep2", "ep2tp2dp2", "cp2dp2", "pp2dp2", "pp2tp2", "cp2ep2", "tp2cp2pp2"]
FORMATS = ["nvfp4", "nvfp4a16", "w4a16", "w8a8", "fp8", "w4afp8"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("model", ["qwen3_moe", "hy_v3", "qwen3_moe_mixed"])
def test_parity(model, format):
    for layout in LAYOUTS:
        report = parity(model, layout, "--format", format, "--grad")
        assert report["logits"]["rel_l2"] < 1e-6, layout
        assert all(gradient["rel_l2"] < 1e-4 for gradient in report["grads"].values()), layout


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("model", ["qwen3_moe", "hy_v3", "llama"])
def test_twenty_steps(tmp_path, model, format):
    train("one", tmp_path / "one", model, format, 20)
    for layout in LAYOUTS:
        if model == "llama" and "ep" in layout:
            continue
        train(layout, tmp_path / layout, model, format, 20)
        expect_same_run(tmp_path / "one", tmp_path / layout, 20)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("model", ["qwen3_moe", "hy_v3", "llama"])
def test_twenty_steps_with_sharded_weights(tmp_path, model, format):
    train("one", tmp_path / "one", model, format, 20)
    for layout in ("dp2", "dp4", "cp2dp2", "tp2dp2", "pp2dp2"):
        train(layout, tmp_path / layout, model, format, 20, "parallel.shard_dense=true")
        expect_same_run(tmp_path / "one", tmp_path / layout, 20)


@pytest.mark.parametrize("format", FORMATS)
def test_uneven_stages(tmp_path, format):
    train("one", tmp_path / "one", "qwen3_moe_deep", format, 20)
    train("pp3", tmp_path / "pp3", "qwen3_moe_deep", format, 20, "train.micro_batch=2")
    expect_same_run(tmp_path / "one", tmp_path / "pp3", 20)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("model", ["qwen3_moe", "hy_v3", "llama"])
def test_twenty_deterministic_steps(tmp_path, model, format):
    train("one", tmp_path / "one", model, format, 20, BITWISE)
    for layout in LAYOUTS:
        if model == "llama" and "ep" in layout:
            continue
        train(layout, tmp_path / layout, model, format, 20, BITWISE)
        expect_same_bits(tmp_path / "one", tmp_path / layout, 20)
