"""A run that is killed again and again, and the run that it must equal."""
import json
import os
import random
import socket
import subprocess
import time

from test_layouts import BINARY, ROOT, losses, tensors, train_words


class KilledRun:
    """Starts ranks as torchrun does, kills one after some time, and starts them again."""

    def __init__(self, folder, layout, model, format, steps, seed, *words):
        self.folder, self.steps, self.random = folder, steps, random.Random(seed)
        self.world, self.words = train_words(layout, folder, model, format, steps, "train.save_every=3", "train.keep_last=3", "train.validate_every=6", *words)

    def start(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = []
        for rank in range(self.world):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(self.world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SCALEWRIGHT_MEETING_SECONDS": "15"}
            ranks.append(subprocess.Popen([BINARY, *map(str, self.words)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return ranks

    def whole(self):
        """Runs to the end; seconds that it took."""
        begin = time.time()
        for process in self.start():
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors[-2000:]
        return time.time() - begin

    def killed_after(self, seconds):
        """Whether a rank was killed before the end; the others must then have ended by themselves, naming it."""
        ranks = self.start()
        victim = self.random.randrange(self.world)
        time.sleep(seconds)
        if any(process.poll() is not None for process in ranks):
            for process in ranks:
                assert process.wait(timeout=60) == 0
            return False
        ranks[victim].kill()
        dead = time.time()
        for rank, process in enumerate(ranks):
            _, errors = process.communicate(timeout=60)
            if rank == victim:
                continue
            # A rank that had nothing left to do may have ended well.
            assert process.returncode in (0, 4), (process.returncode, errors[-2000:])
            if process.returncode == 4:
                # Killed before it came: the others wait for it as long as the variable says.
                never_came = "did not come within 15 s" in errors or "cannot meet the others" in errors
                assert never_came or (time.time() - dead < 15 and f"rank {victim} (host" in errors), errors[-2000:]
        return True


def expect_the_uninterrupted_run(whole, killed, steps):
    assert losses(whole) == losses(killed)
    want, got = tensors(whole, steps), tensors(killed, steps)
    assert set(want) == set(got)
    for name in want:
        assert want[name].tobytes() == got[name].tobytes(), name
    lines = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    seen = [line["step"] for line in lines if line["kind"] == "train"]
    assert seen == sorted(set(seen)), "steps that were done again must be there once"
