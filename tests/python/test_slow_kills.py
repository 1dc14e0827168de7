"""Twenty kills at random moments, also from layout to layout; frozen ranks in every phase."""
import pytest
from kills import KilledRun, expect_the_uninterrupted_run
from test_kills import PHASES, end_of_others
from test_layouts import BITWISE


@pytest.mark.parametrize("layout", ["dp2", "ep2tp2dp2"])
def test_twenty_kills(tmp_path, layout):
    steps = 60
    seconds = KilledRun(tmp_path / "whole", layout, "qwen3_moe", "nvfp4", steps, 1).whole()
    killed = KilledRun(tmp_path / "killed", layout, "qwen3_moe", "nvfp4", steps, 7)
    kills = sum(killed.killed_after(killed.random.uniform(0.02, 0.25) * seconds) for _ in range(20))
    assert kills >= 10   # the rest came after the end
    killed.whole()
    expect_the_uninterrupted_run(tmp_path / "whole", tmp_path / "killed", steps)


def test_kills_from_two_ranks_to_four_to_one(tmp_path):
    words = [BITWISE, "train.schedule=constant"]
    KilledRun(tmp_path / "whole", "one", "qwen3_moe", "nvfp4", 18, 1, *words).whole()
    for steps, layout in ((6, "dp2"), (12, "ep2tp2dp2"), (18, "one")):
        part = KilledRun(tmp_path / "killed", layout, "qwen3_moe", "nvfp4", steps, steps, *words)
        for _ in range(3):
            part.killed_after(part.random.uniform(0.5, 4))
        part.whole()
    expect_the_uninterrupted_run(tmp_path / "whole", tmp_path / "killed", 18)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("victim", [0, 3])
def test_a_frozen_rank_in_any_phase_ends_all(tmp_path, phase, victim):
    for code, errors, seconds in end_of_others(tmp_path, "freeze", phase, victim):
        assert code == 4 and seconds < 13, (code, seconds, errors[-2000:])
        assert f"rank {victim} (host" in errors, errors[-2000:]
