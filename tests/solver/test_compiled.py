"""Compiled and interpreted loops give the same schedules, to the byte."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pace import Options, optimize
from pace.models import build, with_ratio

profile = build("seq2seq", device_tflops=5.6, batch=4096, workers=8, streams=int(sys.argv[1]))
profile = with_ratio(profile, 1.0)
if sys.argv[2] == "sampled":
    from pace.documents.collective_costs import SampledAllReduce

    sizes = (1e3, 1e5, 1e6, 1e7, 1e8)
    samples = tuple((size, float(profile.cost(size)) * 1.1 ** (size < 1e6)) for size in sizes)
    profile = profile.replace(allreduce=SampledAllReduce(samples=samples))
for options in (
    Options(search_calls=30),
    Options(fusion="paper"),
    Options(slot_s=profile.timing.compute_s / 50),
    Options(framework="ddp"),
):
    sys.stdout.buffer.write(optimize(profile, options).to_json())
"""


def schedule_of(arguments: list[str], *, compiled: bool) -> bytes:
    """Return the schedule that a fresh interpreter computes, with or without compilation."""
    environment = os.environ | {"NUMBA_DISABLE_JIT": "0" if compiled else "1"}
    # Interpreted, the generator's 64-bit wrap-around is worth a warning to NumPy.
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", PROGRAM, *arguments]
    return subprocess.run(command, check=True, capture_output=True, env=environment).stdout


@pytest.mark.slow
@pytest.mark.parametrize("streams", ["0", "1"])
@pytest.mark.parametrize("cost", ["affine", "sampled"])
def test_compiled_and_interpreted_schedules_are_equal(streams: str, cost: str) -> None:
    """The plain-Python twin of every hot loop makes the same decisions."""
    arguments = [streams, cost]
    assert schedule_of(arguments, compiled=True) == schedule_of(arguments, compiled=False)
