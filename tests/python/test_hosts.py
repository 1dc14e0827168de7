"""Several hosts: the Slurm example under a stand-in for srun, and two network namespaces joined by a cable."""
import os
import shutil
import socket
import stat
import subprocess
import uuid

import pytest
from test_layouts import BINARY, ROOT, expect_same_run, train, train_words
from waiting import wait_for

SBATCH = ROOT / "examples" / "slurm" / "train.sbatch"

# What Slurm's srun does for us: every task has its number, its node and the step in its environment; the exit code is the largest.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
pids=()
for ((rank = 0; rank < SLURM_NTASKS; ++rank)); do
  env SLURM_PROCID=$rank SLURM_LOCALID=$((rank % 2)) SLURM_NODEID=$((rank / 2)) SLURM_STEP_ID=0 SLURM_LAUNCH_NODE_IPADDR=10.255.0.1 "$@" &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid"; status=$?; ((status > code)) && code=$status; done
exit $code
"""
SCONTROL = """#!/bin/bash
if [[ "$1 $2" == "show hostnames" ]]; then printf '%s\\n' localhost node2; else echo "$@" >>"$SCONTROL_LOG"; fi
"""


@pytest.fixture
def slurm(tmp_path):
    """Runs the example's script as a job of two nodes with two tasks each."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def job(words, restarts=0, failpoints=""):
        log = tmp_path / "scontrol.log"
        log.write_text("")
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": str(40000 + port), "MASTER_PORT": str(port), "SLURM_NTASKS": "4",
                       "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_RESTART_COUNT": str(restarts), "SCALEWRIGHT": BINARY, "SCONTROL_LOG": str(log), "SCALEWRIGHT_FAILPOINTS": failpoints}
        result = subprocess.run(["bash", str(SBATCH), *map(str, words)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
        return result, log.read_text()

    return job


def job_words(folder, *overrides):
    """train's words as the job takes them: a configuration file first."""
    config = folder / "job.yaml"
    config.write_text("train: {steps: 3}\n")
    _, words = train_words("tp2dp2", folder / "slurm", "qwen3_moe", "nvfp4", 3, *overrides)
    return [config, *(word for word in words[1:] if word != "--json")]


def test_the_slurm_example_gives_one_process_numbers(tmp_path, slurm):
    assert subprocess.run(["bash", "-n", str(SBATCH)]).returncode == 0 and SBATCH.stat().st_mode & stat.S_IXUSR
    result, asked = slurm(job_words(tmp_path))
    assert result.returncode == 0 and asked == "", result.stderr[-2000:]
    train("one", tmp_path / "one", "qwen3_moe", "nvfp4", 3)
    expect_same_run(tmp_path / "one", tmp_path / "slurm", 3)


def test_a_stopped_job_is_queued_again_and_goes_on(tmp_path, slurm):
    result, asked = slurm(job_words(tmp_path), failpoints="train.step=stop@2")
    assert result.returncode == 75 and asked.startswith("requeue "), result.stderr[-2000:]
    result, asked = slurm(job_words(tmp_path), restarts=1)
    assert result.returncode == 0 and asked == "", result.stderr[-2000:]
    assert "resuming from step" in result.stderr
    train("one", tmp_path / "one", "qwen3_moe", "nvfp4", 3)
    expect_same_run(tmp_path / "one", tmp_path / "slurm", 3)


def test_a_job_that_fails_for_good_is_not_queued_again(tmp_path, slurm):
    result, asked = slurm(job_words(tmp_path, "train.lr=-1"))
    assert result.returncode == 2 and asked == "", result.stderr[-2000:]
    result, asked = slurm(job_words(tmp_path), restarts=20, failpoints="train.step=stop@2")
    assert result.returncode == 75 and asked == ""


def in_namespace(name, *words):
    return ["ip", "netns", "exec", name, *words]


@pytest.fixture
def two_hosts():
    """Two network namespaces with an address each; skipped, and said so, where that cannot be made."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("two hosts in network namespaces need root and iproute2's ip")
    tag = uuid.uuid4().hex[:6]
    names, made = (f"swa{tag}", f"swb{tag}"), []
    try:
        for name in names:
            result = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if result.returncode != 0:
                pytest.skip(f"network namespaces cannot be made here: {result.stderr.strip()}")
            made.append(name)
        subprocess.run(["ip", "link", "add", f"va{tag}", "netns", names[0], "type", "veth", "peer", "name", f"vb{tag}", "netns", names[1]], check=True)
        for name, link, address in zip(names, (f"va{tag}", f"vb{tag}"), ("10.213.7.1", "10.213.7.2")):
            subprocess.run(in_namespace(name, "ip", "addr", "add", f"{address}/24", "dev", link), check=True)
            subprocess.run(in_namespace(name, "ip", "link", "set", link, "up"), check=True)
            subprocess.run(in_namespace(name, "ip", "link", "set", "lo", "up"), check=True)
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name])


@pytest.mark.parametrize("layout", ["tp2dp2", "pp2tp2"])
def test_two_hosts_in_network_namespaces(tmp_path, two_hosts, layout):
    world, words = train_words(layout, tmp_path / "hosts", "qwen3_moe", "nvfp4", 3)
    ranks = []
    for rank in range(world):   # ranks 0 and 1 on the first host, 2 and 3 on the second
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": str(world), "MASTER_ADDR": "10.213.7.1", "MASTER_PORT": "29511"}
        ranks.append(subprocess.Popen(in_namespace(two_hosts[rank // 2], BINARY, *map(str, words)), cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for process in ranks:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-2000:]
    train("one", tmp_path / "one", "qwen3_moe", "nvfp4", 3)
    expect_same_run(tmp_path / "one", tmp_path / "hosts", 3)


def test_a_host_that_vanishes_ends_the_others(tmp_path, two_hosts):
    world, words = train_words("dp2", tmp_path / "hosts", "qwen3_moe", "nvfp4", 100000)
    ranks = []
    for rank in range(world):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "10.213.7.1", "MASTER_PORT": "29511"}
        ranks.append(subprocess.Popen(in_namespace(two_hosts[rank], BINARY, *map(str, words)), cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    wait_for(tmp_path / "hosts" / "metrics.jsonl")
    subprocess.run(in_namespace(two_hosts[1], "ip", "link", "set", f"vb{two_hosts[1][3:]}", "down"), check=True)   # the cable is pulled
    _, errors = ranks[0].communicate(timeout=40)
    assert ranks[0].returncode == 4 and "rank 1 (host" in errors and "gives no sign of life" in errors, errors[-2000:]
    ranks[1].kill()
    ranks[1].communicate()
