"""What all contenders train on, and how their steps are timed."""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

WIDTH, BAG, DENSE, WARM_UP = 64, 5, 13, 10


class Turn(NamedTuple):
    """What one run of a contender gave.

    Attributes
    ----------
    examples_per_s
        Of all workers together.
    processor_s
        Processor time of all processes for 1,000 examples.
    carried_bytes
        Bytes that each worker sent and received in a step; 0 where nobody counts them.
    """

    examples_per_s: float
    processor_s: float
    carried_bytes: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Examples of one worker.

    Attributes
    ----------
    keys : integers of shape (tables, examples, keys of a bag)
    dense : (examples, 13)
    clicks : (examples, 1)
    """

    keys: torch.Tensor
    dense: torch.Tensor
    clicks: torch.Tensor


def draw_batches(rank: int, options: argparse.Namespace) -> Iterator[Batch]:
    """Yield a worker's batches, those of the warm-up first; few keys are frequent."""
    drawn = torch.Generator().manual_seed(rank)
    for _ in range(WARM_UP + options.steps):
        shape = (options.tables, options.batch, BAG)
        keys = (torch.rand(shape, generator=drawn) ** 3 * (options.rows // options.tables)).long()
        dense = torch.rand(options.batch, DENSE, generator=drawn)
        yield Batch(keys, dense, torch.rand(options.batch, 1, generator=drawn))


def timed(
    step: Callable[[Batch, Batch | None], None], rank: int, options: argparse.Namespace
) -> tuple[float, float]:
    """Take all steps; return the seconds of those after the warm-up, and the processor time of all.

    A step gets its batch and the next one.
    """
    batches = [*draw_batches(rank, options), None]
    start_s, before_s = 0.0, time.process_time()
    for number, (batch, following) in enumerate(pairwise(batches)):
        if number == WARM_UP:
            start_s = time.perf_counter()
        assert batch is not None
        step(batch, following)
    return time.perf_counter() - start_s, time.process_time() - before_s


def turn_of(
    options: argparse.Namespace, seconds: list[float], processor_s: float, carried_bytes: float = 0.0
) -> Turn:
    """Return a turn from each worker's seconds, and the processor time of all processes."""
    thousands = options.workers * options.batch * (WARM_UP + options.steps) / 1000
    rate = sum(options.batch * options.steps / each for each in seconds)
    return Turn(rate, processor_s / thousands, carried_bytes)
