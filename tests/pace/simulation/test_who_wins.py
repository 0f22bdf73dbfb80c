"""The result that counts: our schedules against every policy, on every bundled profile and many networks."""

from pathlib import Path

import pytest

from pace import Profile, load_profile
from pace.documents.load import NO_LOAD
from pace.models import build, with_ratio
from pace.planning.fusion.choice import TIE
from pace.simulation import POLICIES
from pace.whatif import Grid, what_if

BUNDLED = sorted((Path(__file__).parents[3] / "examples" / "profiles").glob("*.json"))
BATCHES = {"resnet50-v1.5": 32, "inception-v3": 32, "seq2seq": 4096, "bert-large": 4096}
BRANCHED = ("resnet50", "inception-v3")
# Bandwidths by the number of workers.
NETWORKS = {4: (1.0, 10.0, 16.0, 40.0), 16: (6.0, 12.0, 20.0)}

# Who may be ahead, by how much, and why.
BEHIND = TIE + 2e-4
WHY = """
Of plans within 0.2 % of the fastest, optimal takes the one with the fewest calls. Beyond that:
optimal cuts and orders the groups that are exact if preemption is free, and the exact groups at several
larger latencies; the best realizable plan may need groups between them. Others fit better by at most 0.02 %,
seen with the paper's fusion (pace) and MG-WFBP's merging around the bandwidth at which communication begins
to hide completely, where a few messages' latency is all that is left over. DeAR pays half of each
all-reduce's cost twice, half the latency each time, and lets the halves go apart, which no schedule of whole
all-reduces can. Our own schedules in two halves are left out for the same reason.
"""
ALL_REDUCES = tuple(policy for policy in POLICIES if policy != "sharded")


def profiles() -> list[Profile]:
    """Return what is bundled, further architectures, and branches without and with two streams."""
    bundled = [load_profile(path) for path in BUNDLED]
    layered = [build(name, device_tflops=8.0, batch=batch, workers=8) for name, batch in BATCHES.items()]
    free = [build(name, device_tflops=8.0, batch=32, workers=8, streams=0) for name in BRANCHED]
    two = [build(name, device_tflops=8.0, batch=32, workers=8, streams=2) for name in BRANCHED]
    return [*bundled, *layered, *free, *two]


@pytest.mark.slow
@pytest.mark.parametrize("profile", profiles(), ids=lambda p: f"{p.name}-{p.metadata['streams']}-streams")
def test_no_policy_is_ahead_of_optimal(profile: Profile) -> None:
    """On every network; a hair's breadth is explained in ``WHY``, and its width is asserted."""
    assert BUNDLED
    for workers, bandwidth_gbps in NETWORKS.items():
        grid = Grid(bandwidth_gbps=bandwidth_gbps, workers=(workers,), policies=ALL_REDUCES)
        for cells in what_if(profile.replace(load=NO_LOAD), grid, processes=1).points():
            (ours,) = (cell for cell in cells if cell.policy == "pace")
            for cell in cells:
                ahead = ours.iteration_s / cell.iteration_s - 1
                assert ahead <= BEHIND, (cell, ahead, WHY)


@pytest.mark.slow
def test_where_it_counts_the_gain_is_large() -> None:
    """Where communication and compute take equally long, at least 15 % over each framework's default.

    Of Seq2Seq it is 10 %: its large embedding is ready last and needed first.
    """
    for path in BUNDLED:
        grid = Grid(policies=("fifo", "horovod", "ddp", "pace"))
        profile = with_ratio(load_profile(path), 1.0).replace(load=NO_LOAD)
        *others, ours = what_if(profile, grid).cells
        for other in others:
            least = 1.10 if path.stem == "seq2seq" else 1.15
            assert other.iteration_s / ours.iteration_s > least, (path, other.policy)
