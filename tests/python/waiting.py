"""Waiting for something that another process does."""
import time


def wait_for(path, seconds=60):
    """Until `path` exists, or the time is up (what follows then fails by itself)."""
    deadline = time.time() + seconds
    while not path.exists() and time.time() < deadline:
        time.sleep(0.05)
