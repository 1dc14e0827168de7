"""convert: there and back is the identity, damage is named, a crash leaves nothing half-written, train converts by itself."""
import json
import os
import pathlib
import shutil
import socket
import subprocess

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SCALEWRIGHT_BINARY", str(ROOT / "build" / "scalewright"))
REFERENCE = ROOT / "tests" / "data" / "reference"
TINY = ROOT / "examples" / "tiny" / "fixture" / "model"


def run(*words, world=1, failpoints="", timeout=120):
    command = [BINARY, *map(str, words)]
    if world > 1:
        command = [BINARY, "launch", "--nproc", str(world), "--", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=timeout, env={**os.environ, "SCALEWRIGHT_FAILPOINTS": failpoints})


def convert(model, out, *words, **options):
    result = run("convert", "--model", model, "--out", out, *words, **options)
    assert result.returncode == 0, result.stderr
    return result


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def sharded_copy(model, folder):
    """The same model in several files with tensors in no particular order, as hubs have it, and other small files."""
    folder.mkdir()
    for path in model.iterdir():
        if path.suffix != ".safetensors" and path.is_file() and path.name.endswith((".json", ".jinja")) and not path.name.endswith("index.json"):
            shutil.copy(path, folder)
    tensors = {}
    with safe_open(model / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    names = sorted(tensors, key=lambda name: name[::-1])
    files = {}
    for i in range(3):
        part = names[i::3]
        files[f"model-{i + 1:05}-of-00003.safetensors"] = part
        save_file({name: tensors[name].clone() for name in part}, folder / f"model-{i + 1:05}-of-00003.safetensors", {"format": "pt", "made": "for a test"})
    index = {"metadata": {"total_size": 1, "note": "kept as it is"}, "weight_map": {name: file for file, part in files.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "merges.txt").write_text("a b\n")
    return folder


@pytest.mark.parametrize("world", [1, 3])
def test_there_and_back_is_the_identity(tmp_path, world):
    model = sharded_copy(TINY, tmp_path / "model")
    convert(model, tmp_path / "checkpoint", "--shard-size", "100KB", world=world)
    shards = sorted(path.name for path in (tmp_path / "checkpoint").glob("shard_*.safetensors"))
    assert len(shards) > 5
    assert not [name for name in os.listdir(tmp_path) if name not in ("model", "checkpoint")]
    convert(tmp_path / "checkpoint", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(model)


def test_an_index_beside_a_single_file_is_kept(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    (model / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    convert(model, tmp_path / "checkpoint")
    convert(tmp_path / "checkpoint", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(model)


def test_the_number_of_ranks_does_not_show(tmp_path):
    for world in (1, 2):
        convert(TINY, tmp_path / str(world), "--shard-size", "200KB", world=world)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


@pytest.mark.parametrize("model", ["qwen3_moe", "hy_v3", "llama"])
def test_a_checkpoint_is_a_model_to_every_command(tmp_path, model):
    convert(REFERENCE / model, tmp_path / "checkpoint", "--shard-size", "50KB")
    answers = []
    for folder in (REFERENCE / model, tmp_path / "checkpoint"):
        result = run("parity", "--model", folder, "--expected", REFERENCE / model / "expected.safetensors", "--dtype", "float64", "--json")
        assert result.returncode == 0, result.stderr
        answers.append(json.loads(result.stdout))
    assert answers[0] == answers[1]
    assert run("inspect", tmp_path / "checkpoint").returncode == 0


def damage(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def test_damage_is_named(tmp_path):
    convert(sharded_copy(TINY, tmp_path / "model"), tmp_path / "good", "--shard-size", "200KB")
    for name, at in (("shard_00001.safetensors", -5), ("manifest.json", 400), ("tokenizer.json", 50), ("source/model-00001-of-00003.safetensors.header", 60),
                     ("source/model.safetensors.index.json", 20)):
        shutil.rmtree(tmp_path / "bad", ignore_errors=True)
        shutil.copytree(tmp_path / "good", tmp_path / "bad")
        damage(tmp_path / "bad" / name, at)
        result = run("convert", "--model", tmp_path / "bad", "--out", tmp_path / "back")
        assert result.returncode == 3 and name.split("/")[-1] in result.stderr, (name, result.stderr)
        assert not (tmp_path / "back").exists()
    (tmp_path / "good" / "shard_00001.safetensors").unlink()
    result = run("convert", "--model", tmp_path / "good", "--out", tmp_path / "back")
    assert result.returncode == 3 and "shard_00001.safetensors" in result.stderr


@pytest.mark.parametrize("failpoint", ["convert.tensor=kill@1", "convert.tensor=kill@9", "convert.publish=kill", "convert.tensor=error@4"])
@pytest.mark.parametrize("back", [False, True])
def test_a_crash_leaves_nothing_half_written(tmp_path, failpoint, back):
    model = TINY
    if back:
        convert(TINY, tmp_path / "checkpoint")
        model = tmp_path / "checkpoint"
    result = run("convert", "--model", model, "--out", tmp_path / "out", failpoints=failpoint)
    assert result.returncode != 0 and not (tmp_path / "out").exists()
    convert(model, tmp_path / "out")   # clears what was left, and works
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_what_is_there_is_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    result = run("convert", "--model", TINY, "--out", tmp_path / "out")
    assert result.returncode == 2 and "left as it is" in result.stderr
    result = run("convert", "--model", TINY, "--out", TINY)
    assert result.returncode == 2


def test_code_and_pickles_are_not_carried(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    (model / "modeling_x.py").write_text("import os")
    (model / "pytorch_model.bin").write_bytes(b"\x80\x04")
    result = convert(model, tmp_path / "checkpoint")
    assert "modeling_x.py, pytorch_model.bin" in result.stderr
    assert not (tmp_path / "checkpoint" / "modeling_x.py").exists()


def train_words(tmp_path, checkpoint):
    return ["train", "--dtype", "float64", "--threads", "1", "--json", "-o", f"model.path={REFERENCE / 'qwen3_moe'}", "-o", f"model.checkpoint={checkpoint}", "-o", "quantize.format=w4a16",
            "-o", "train.steps=2", "-o", "data.seq_len=32", "-o", "data.max_samples=16", "-o", "train.micro_batch=1", "-o", "train.global_batch=4", "-o", f"output.path={tmp_path / 'run'}"]


def test_train_converts_by_itself_while_the_others_wait(tmp_path):
    result = run(*train_words(tmp_path, tmp_path / "checkpoint"), world=2)
    assert result.returncode == 0, result.stderr
    assert "no checkpoint yet: converting" in result.stderr
    convert(tmp_path / "checkpoint", tmp_path / "back")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (REFERENCE / "qwen3_moe" / "model.safetensors").read_bytes()
    again = run(*train_words(tmp_path, tmp_path / "checkpoint"), "-o", "train.steps=3")   # another number of ranks, the same checkpoint
    assert again.returncode == 0 and json.loads(again.stdout)["resumed_from"] == 2, again.stderr


def test_a_megatron_checkpoint_is_refused_with_the_way_out(tmp_path):
    for name in ("latest_checkpointed_iteration.txt", "iter_0000001/__0_0.distcp"):
        folder = tmp_path / name.split("/")[0].replace(".", "_")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1")
        result = run(*train_words(tmp_path, folder))
        assert result.returncode == 2 and "Megatron-Core checkpoint" in result.stderr and "hint: leave the checkpoint path away" in result.stderr


def test_a_checkpoint_that_only_some_ranks_see_is_an_error(tmp_path):
    convert(REFERENCE / "qwen3_moe", tmp_path / "here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):   # a relative path in two places stands for two hosts
        (tmp_path / f"host{rank}").mkdir()
        if rank == 1:
            (tmp_path / "host1" / "ckpt").symlink_to(tmp_path / "here")
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks.append(subprocess.Popen([BINARY, *map(str, train_words(tmp_path, "ckpt"))], cwd=tmp_path / f"host{rank}", env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for process in ranks:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 2 and "ckpt: the checkpoint is there for ranks 1 but not for ranks 0" in errors, errors

