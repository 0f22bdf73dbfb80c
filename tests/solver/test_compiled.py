"""Compiled and interpreted loops give the same schedules, to the byte."""

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import pickle, sys
from pace import Options, optimize
from pace.documents.collective_costs import SampledAllReduce
from pace.models import build, with_ratio

found = {}
for streams in (0, 1):
    affine = with_ratio(build("seq2seq", device_tflops=5.6, batch=4096, workers=8, streams=streams), 1.0)
    sizes = (1e3, 1e5, 1e6, 1e7, 1e8)
    samples = tuple((size, float(affine.cost(size)) * 1.1 ** (size < 1e6)) for size in sizes)
    sampled = affine.replace(allreduce=SampledAllReduce(samples=samples))
    for cost, profile in (("affine", affine), ("sampled", sampled)):
        for options in (
            Options(search_calls=30),
            Options(fusion="paper"),
            Options(slot_s=profile.timing.compute_s / 50),
            Options(framework="ddp"),
        ):
            found.setdefault((streams, cost), []).append(optimize(profile, options).to_json())
"""
WRITE = "sys.stdout.buffer.write(pickle.dumps(found))"
Schedules = dict[tuple[int, str], list[bytes]]


@pytest.fixture(scope="module")
def schedules() -> tuple[Schedules, Schedules]:
    """What is computed here, compiled, and in a fresh interpreter without compilation."""
    assert "NUMBA_DISABLE_JIT" not in os.environ
    # Interpreted, the generator's 64-bit wrap-around is worth a warning to NumPy.
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", PROGRAM + WRITE]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as running:
        here: dict[str, Any] = {}
        exec(PROGRAM, here)
        interpreted = pickle.loads(running.communicate()[0])
    assert running.returncode == 0
    return here["found"], interpreted


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("streams", [0, 1])
@pytest.mark.parametrize("cost", ["affine", "sampled"])
def test_compiled_and_interpreted_schedules_are_equal(
    schedules: tuple[Schedules, Schedules], streams: int, cost: str
) -> None:
    """The plain-Python twin of every hot loop makes the same decisions."""
    compiled, interpreted = schedules
    assert len(compiled[streams, cost]) == 4
    assert compiled[streams, cost] == interpreted[streams, cost]
