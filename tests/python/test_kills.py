"""kill -9 loses nothing: at random moments, and of a rank in every phase."""
import os
import signal
import socket
import subprocess
import time

import pytest
from kills import KilledRun, expect_the_uninterrupted_run
from test_layouts import BINARY, ROOT, train_words


def test_killed_twice_and_finished_is_the_uninterrupted_run(tmp_path):
    whole = KilledRun(tmp_path / "whole", "tp2", "qwen3_moe", "nvfp4", 12, 1)
    seconds = whole.whole()
    killed = KilledRun(tmp_path / "killed", "tp2", "qwen3_moe", "nvfp4", 12, 2)
    for _ in range(2):
        killed.killed_after(killed.random.uniform(0.3, 0.9) * seconds)
    killed.whole()
    expect_the_uninterrupted_run(tmp_path / "whole", tmp_path / "killed", 12)


PHASES = {"load": "model.load=@2", "forward": "train.forward=@2", "backward": "train.backward=@2", "save": "train.save=@1"}


def end_of_others(tmp_path, action, phase, victim=1):
    """Four ranks of which `victim` is killed or frozen in `phase`: exit codes, messages and seconds of the others."""
    name, _, at = PHASES[phase].partition("=")
    world, words = train_words("tp2dp2", tmp_path / "run", "qwen3_moe", "nvfp4", 4, "train.save_every=2")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(world):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if rank == victim:
            environment["SCALEWRIGHT_FAILPOINTS"] = f"{name}={action}{at}"
        ranks.append(subprocess.Popen([BINARY, *map(str, words)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    struck = ranks[victim]
    if action == "kill":
        assert struck.wait(timeout=120) == -signal.SIGKILL
    else:
        while "\nState:\tT" not in open(f"/proc/{struck.pid}/status").read():
            time.sleep(0.02)
    begin, others = time.time(), []
    for rank, process in enumerate(ranks):
        if rank != victim:
            _, errors = process.communicate(timeout=60)
            others.append((process.returncode, errors, time.time() - begin))
    struck.kill()
    struck.communicate()
    return others


@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_killed_in_any_phase_ends_all(tmp_path, phase):
    for code, errors, seconds in end_of_others(tmp_path, "kill", phase):
        assert code == 4 and seconds < 5, (code, seconds, errors[-2000:])
        assert "rank 1 (host" in errors and "died" in errors, errors[-2000:]


def test_a_frozen_rank_ends_all(tmp_path):
    for code, errors, seconds in end_of_others(tmp_path, "freeze", "backward", victim=0):
        assert code == 4 and seconds < 13, (code, seconds, errors[-2000:])   # 10 s of silence and a heartbeat
        assert "rank 0 (host" in errors, errors[-2000:]


def test_a_rank_that_never_comes_is_named(tmp_path):
    world, words = train_words("tp2dp2", tmp_path / "run", "qwen3_moe", "nvfp4", 4)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in (0, 2):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SCALEWRIGHT_MEETING_SECONDS": "12"}
        ranks.append(subprocess.Popen([BINARY, *map(str, words)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    said = []
    for process in ranks:
        _, errors = process.communicate(timeout=40)
        said.append(errors)
        assert process.returncode == 4 and "2 of 4 ranks: 1, 3 did not come within 12 s" in errors, errors[-2000:]
    assert "[rank 0] waiting for 2 of 4 ranks: 1, 3 (10 s)" in said[0]
