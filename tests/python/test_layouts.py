"""Several ranks on this machine: every layout gives one process's numbers, errors name the number to change, a dead rank ends all."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import numpy as np
import pytest
from safetensors import safe_open
from waiting import wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SCALEWRIGHT_BINARY", str(ROOT / "build" / "scalewright"))
REFERENCE = ROOT / "tests" / "data" / "reference"
# Sums in another order move float64 by about 1e-15; anything wrong moves it by far more.
EQUAL = 1e-12


def ranks_of(layout):
    degrees = {name: int(number) for name, number in re.findall(r"(tp|ep|cp|pp|dp)(\d+)", layout)}
    given = re.search(r"on(\d+)", layout)
    dense = degrees.get("tp", 1) * degrees.get("cp", 1) * degrees.get("pp", 1) * degrees.get("dp", 1)
    world = int(given.group(1)) if given else max(dense, degrees.get("ep", 1))
    flags = [word for name, number in degrees.items() if name != "dp" for word in (f"--{name}", str(number))]
    return world, flags


def run(world, *words, timeout=240):
    command = [BINARY, *map(str, words)]
    if world > 1:
        command = [BINARY, "launch", "--nproc", str(world), "--", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=timeout)


def parity(model, layout, *words):
    world, flags = ranks_of(layout)
    folder = REFERENCE / model
    result = run(world, "parity", "--model", folder, "--expected", folder / "expected.safetensors", "--dtype", "float64", "--threads", "1", "--json", *flags, *words)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


# Every layout and every format at least once, each pair of degrees at least once; all of them in test_slow_layouts.py.
COVER = [("dp2", "qwen3_moe", "nvfp4"), ("tp2", "qwen3_moe", "w8a8"), ("tp4", "hy_v3", "fp8"), ("tp2", "hy_v3", "w4afp8"), ("ep4", "qwen3_moe", "nvfp4"),
         ("cp2", "qwen3_moe_mixed", "w4a16"), ("ep2on4", "qwen3_moe", "w4afp8"), ("tp2dp2", "hy_v3", "nvfp4"), ("tp2ep2", "qwen3_moe_mixed", "fp8"),
         ("ep2tp2dp2", "qwen3_moe", "nvfp4a16"), ("cp2dp2", "hy_v3", "w8a8"), ("pp2dp2", "qwen3_moe", "fp8"), ("pp2tp2", "hy_v3", "w4a16"),
         ("cp2ep2", "hy_v3", "nvfp4a16"), ("pp3", "qwen3_moe_deep", "nvfp4"), ("tp2cp2pp2", "qwen3_moe", "nvfp4")]


@pytest.mark.parametrize("layout,model,format", COVER)
def test_any_layout_gives_the_reference_answers(layout, model, format):
    report = parity(model, layout, "--format", format, "--grad")
    assert report["logits"]["rel_l2"] < 1e-6
    for loss in report["losses"].values():
        assert abs(loss["got"] - loss["want"]) <= 1e-6 * abs(loss["want"])
    assert report["grads"] and all(gradient["rel_l2"] < 1e-4 for gradient in report["grads"].values())
    world, flags = ranks_of(layout)
    assert len(report["local_parameters"]) == world
    for name, degree in zip(flags[::2], flags[1::2]):
        assert report["layout"][name[2:]] == int(degree)


@pytest.mark.parametrize("layout,model", [("tp4", "qwen2"), ("tp2", "llama"), ("cp4", "qwen3"), ("tp2cp2pp2", "qwen3"), ("pp2", "llama")])
def test_any_layout_of_dense_models(layout, model):
    report = parity(model, layout)
    assert abs(report["lm_loss"]["got"] - report["lm_loss"]["want"]) <= 1e-8 * abs(report["lm_loss"]["want"])


def test_parameters_are_split():
    whole = parity("qwen3_moe", "one")["local_parameters"]
    assert sum(parity("qwen3_moe", "pp2")["local_parameters"]) == whole[0]
    assert all(part < 0.62 * whole[0] for part in parity("qwen3_moe", "ep2")["local_parameters"])
    assert all(part < 0.6 * parity("llama", "one")["local_parameters"][0] for part in parity("llama", "tp2")["local_parameters"])


def train_words(layout, run_folder, model, format, steps, *words):
    world, flags = ranks_of(layout)
    tp, cp, pp = (int(dict(zip(flags[::2], flags[1::2])).get(name, 1)) for name in ("--tp", "--cp", "--pp"))
    options = {"model.path": REFERENCE / model, "output.path": run_folder, "quantize.format": format, "train.steps": steps, "train.log_every": 1, "data.seq_len": 40,
               "data.max_samples": 64, "data.validation_fraction": 0.1, "train.micro_batch": 8 * tp * cp * pp // world, "train.global_batch": 8, "train.lr": 1e-2,
               "train.act_scales": str(format == "nvfp4").lower(), "train.schedule": "linear", **dict(word.split("=") for word in words)}
    dtype = "float32" if "parallel.deterministic=layout" in words else "float64"
    return world, ["train", "--dtype", dtype, "--threads", "1", "--json", *flags, *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]


def train(*arguments):
    world, words = train_words(*arguments)
    result = run(world, *words)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


def losses(run_folder):
    lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def tensors(run_folder, step):
    result = {}
    for path in (run_folder / "checkpoints" / f"step_{step}").glob("*.safetensors"):
        with safe_open(path, "np") as file:
            result.update({name: file.get_tensor(name) for name in file.keys()})
    return result


def expect_same_run(one, other, step):
    for a, b in zip(losses(one), losses(other), strict=True):
        assert abs(a - b) <= EQUAL * abs(a)
    want, got = tensors(one, step), tensors(other, step)
    assert set(want) == set(got) and any(name.startswith("adam.v/") for name in want)
    for name in want:
        assert np.linalg.norm(want[name] - got[name]) <= 1e-9 * np.linalg.norm(want[name]), name


@pytest.mark.parametrize("model,format,layouts", [("qwen3_moe", "nvfp4", ["tp2ep2", "cp2dp2"]), ("hy_v3", "w8a8", ["pp2tp2"]), ("hy_v3", "w4a16", ["ep2tp2dp2"])])
def test_training_in_any_layout_is_the_same_run(tmp_path, model, format, layouts):
    train("one", tmp_path / "one", model, format, 4)
    for layout in layouts:
        train(layout, tmp_path / layout, model, format, 4)
        expect_same_run(tmp_path / "one", tmp_path / layout, 4)


def expect_same_bits(one, other, step):
    assert losses(one) == losses(other)
    want, got = tensors(one, step), tensors(other, step)
    assert set(want) == set(got) and any(name.startswith("adam.v/") for name in want)
    for name in want:
        assert want[name].tobytes() == got[name].tobytes(), name


BITWISE = "parallel.deterministic=layout"


@pytest.mark.parametrize("model,format,layouts", [("qwen3_moe", "nvfp4", ["dp2", "tp2cp2pp2", "ep2tp2dp2"]), ("hy_v3", "w8a8", ["ep4", "cp2ep2", "tp2dp2"]),
                                                  ("qwen3_moe_mixed", "w4afp8", ["tp4", "pp2tp2"]), ("qwen2", "w8a8", ["tp2cp2pp2", "tp4"])])   # with biases
def test_deterministic_layouts_are_equal_to_the_bit(tmp_path, model, format, layouts):
    train("one", tmp_path / "one", model, format, 3, BITWISE)
    for layout in layouts:
        train(layout, tmp_path / layout, model, format, 3, BITWISE)
        expect_same_bits(tmp_path / "one", tmp_path / layout, 3)


def test_only_deterministic_layouts_are_equal_to_the_bit(tmp_path):
    """Else the test above would show nothing."""
    for layout in ("one", "tp2"):
        world, words = train_words(layout, tmp_path / layout, "qwen3_moe", "nvfp4", 3)
        words[words.index("float64")] = "float32"
        assert run(world, *words).returncode == 0
    want, got = tensors(tmp_path / "one", 3), tensors(tmp_path / "tp2", 3)
    assert any(want[name].tobytes() != got[name].tobytes() for name in want)


def test_deterministic_runs_go_on_in_another_layout_to_the_bit_and_export_the_same_files(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    words = [BITWISE, "train.schedule=constant", "train.validate_every=2", "train.save_every=2"]   # export takes the best of the validated
    train("one", whole, "qwen3_moe", "nvfp4", 6, *words)
    for steps, layout in ((2, "dp2"), (4, "ep2tp2dp2"), (6, "one")):
        # Micro-batches, recompute and threads are free to change as well.
        train(layout, parts, "qwen3_moe", "nvfp4", steps, *words, "train.micro_batch=1", f"train.recompute={str(steps == 4).lower()}")
    expect_same_bits(whole, parts, 6)
    for folder, world, words in ((whole, 1, []), (parts, 2, ["--tp", "2"])):
        result = run(world, "export", "--run", folder, "--out", folder / "served", *words)
        assert result.returncode == 0, result.stderr[-2000:]
    names = sorted(path.name for path in (whole / "served").iterdir())
    assert names == sorted(path.name for path in (parts / "served").iterdir()) and "model.safetensors" in names
    for name in names:
        if name.endswith(".safetensors"):
            assert (whole / "served" / name).read_bytes() == (parts / "served" / name).read_bytes(), name


@pytest.mark.parametrize("layout,model,format", [("dp2", "qwen3_moe", "nvfp4"), ("tp2dp2", "hy_v3", "w8a8"), ("tp2cp2", "qwen2", "w4a16"), ("pp2dp2", "qwen3_moe", "fp8")])
def test_dense_weights_sharded_over_data_parallel_ranks(tmp_path, layout, model, format):
    train("one", tmp_path / "one", model, format, 3)
    train(layout, tmp_path / "sharded", model, format, 3, "parallel.shard_dense=true")
    expect_same_run(tmp_path / "one", tmp_path / "sharded", 3)


def test_recompute_and_micro_batches_in_a_pipeline(tmp_path):
    train("one", tmp_path / "one", "qwen3_moe_deep", "nvfp4", 2)
    train("pp3", tmp_path / "pp3", "qwen3_moe_deep", "nvfp4", 2, "train.micro_batch=2", "train.recompute=true")
    expect_same_run(tmp_path / "one", tmp_path / "pp3", 2)


def test_stage_sizes_by_hand(tmp_path):
    train("one", tmp_path / "one", "qwen3_moe_deep", "w4a16", 2)
    train("pp3", tmp_path / "pp3", "qwen3_moe_deep", "w4a16", 2, "train.micro_batch=4", "parallel.first_stage_layers=1", "parallel.last_stage_layers=2")
    expect_same_run(tmp_path / "one", tmp_path / "pp3", 2)
    folder = REFERENCE / "qwen3_moe_deep"
    words = ["parity", "--model", folder, "--expected", folder / "expected.safetensors", "--threads", "1", "--pp", "2"]
    sizes = json.loads(run(2, *words, "--json", "-o", "parallel.first_stage_layers=1").stdout)["local_parameters"]
    assert sizes[0] < 0.5 * sizes[1]
    result = run(2, *words, "-o", "parallel.first_stage_layers=1", "-o", "parallel.last_stage_layers=1")
    assert result.returncode != 0 and "leave one of them at 0" in result.stderr
    planned = run(1, "plan", "--json", "-o", f"model.path={folder}", "--world", "3", "--pp", "3", "-o", "parallel.first_stage_layers=1", "-o", "parallel.last_stage_layers=2")
    layers = [rank["layers"] for rank in json.loads(planned.stdout)["ranks"]]
    assert layers[0] == [0, 1] and layers[2][1] - layers[2][0] == 2


def test_recomputing_some_layers_changes_no_bit(tmp_path):
    for name, words in (("none", []), ("two", ["train.recompute=true", "train.recompute_layers=2"]), ("all", ["train.recompute=true"])):
        train("one", tmp_path / name, "qwen3_moe_deep", "nvfp4", 2, *words)
    memory = {name: json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-2])["tensor_memory"] for name in ("none", "two", "all")}
    assert memory["all"] < memory["two"] < memory["none"]
    expect_same_bits(tmp_path / "none", tmp_path / "two", 2)
    expect_same_bits(tmp_path / "none", tmp_path / "all", 2)


def test_a_run_goes_on_in_another_layout(tmp_path):
    # The schedule must not depend on where the run paused: constant.
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train("one", whole, "qwen3_moe", "nvfp4", 6, "train.schedule=constant")
    for steps, layout in ((2, "tp2"), (4, "ep2tp2dp2"), (6, "one")):
        outcome = train(layout, parts, "qwen3_moe", "nvfp4", steps, "train.schedule=constant")
        assert outcome["steps"] == steps and outcome["resumed_from"] == steps - 2
    expect_same_run(whole, parts, 6)


def test_errors_name_the_number_to_change():
    folder = REFERENCE / "qwen3_moe"
    parity_words = ["parity", "--model", folder, "--expected", folder / "expected.safetensors", "--threads", "1"]
    for world, words, expected in [(2, ["--tp", "4"], "2 ranks cannot be split into tp 4"), (2, ["--ep", "4"], "ep 4"), (2, ["--sp"], "parallel.tp is 1"),
                                   (2, ["--dp", "3"], "leave parallel.dp away"), (1, ["--tp", "2"], "parallel.tp is 2, but this is one process"),
                                   (3, ["--ep", "3"], "ep must divide the number of experts"), (8, ["--tp", "8"], "4 attention heads"), (3, ["--pp", "3"], "2 layers")]:
        result = run(world, *parity_words, *words)
        assert result.returncode in (2, 4), (words, result.stderr)
        assert expected in result.stderr, (words, result.stderr)


def started_run(folder, layout):
    """Ranks started one by one, as torchrun does, in the middle of training."""
    world, words = train_words(layout, folder, "qwen3_moe", "nvfp4", 100000)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(world):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen([BINARY, *map(str, words)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    wait_for(folder / "metrics.jsonl")
    time.sleep(1)
    return ranks


def launched_run(folder, layout):
    """The same under launch."""
    world, words = train_words(layout, folder, "qwen3_moe", "nvfp4", 100000)
    process = subprocess.Popen([BINARY, "launch", "--nproc", str(world), "--", *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(folder / "metrics.jsonl")
    return process


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_rank_ends_all_others_with_its_name(tmp_path, victim):
    ranks = started_run(tmp_path / "run", "tp2dp2")
    ranks[victim].kill()
    start = time.time()
    for rank, process in enumerate(ranks):
        _, errors = process.communicate(timeout=30)
        if rank == victim:
            continue
        assert process.returncode == 4 and time.time() - start < 5, errors[-2000:]
        assert f"rank {victim} (host" in errors and "died; its last operation:" in errors, errors[-2000:]


def test_a_stopped_rank_ends_all_others_with_its_name(tmp_path):
    ranks = started_run(tmp_path / "run", "cp2")
    ranks[1].send_signal(signal.SIGSTOP)
    start = time.time()
    _, errors = ranks[0].communicate(timeout=30)
    assert ranks[0].returncode == 4 and time.time() - start < 12, errors[-2000:]
    assert "rank 1 (host" in errors and "gives no sign of life for 10 s" in errors, errors[-2000:]
    ranks[1].kill()
    ranks[1].communicate()


def test_launch_tells_which_rank_was_killed(tmp_path):
    process = launched_run(tmp_path / "run", "tp2")
    children = [int(pid) for pid in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) == 2
    os.kill(children[1], signal.SIGKILL)
    start = time.time()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 4 and time.time() - start < 5, errors[-2000:]
    assert "rank 1" in errors and "signal 9" in errors


def test_a_stop_signal_saves_on_all_ranks_at_the_same_step(tmp_path):
    process = launched_run(tmp_path / "run", "cp2")
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors[-2000:]
    saved = [int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").glob("step_*")]
    assert len(saved) == 1 and f"after step {saved[0]} " in errors


def test_single_process_commands_run_on_the_first_rank(tmp_path):
    words = ["ptq", "--model", REFERENCE / "qwen3_moe", "--format", "w4a16", "--threads", "1"]
    assert run(1, *words, "--out", tmp_path / "one").returncode == 0
    assert run(2, *words, "--tp", "2", "--out", tmp_path / "two").returncode == 0
    for path in (tmp_path / "one").iterdir():
        if path.name != "quant_summary.json":
            assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
    result = run(2, "recover", "-c", "examples/tiny/recover.yaml")
    assert result.returncode == 2 and "runs in one process" in result.stderr
