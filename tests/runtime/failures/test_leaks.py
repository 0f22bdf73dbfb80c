"""Refused wrappers leave no thread and no descriptor behind."""

import os
import threading
import time
from typing import Any, cast

import torch

from pace.errors import PaceError
from tests.runtime.launch import Backend, run_ranks
from tests.runtime.models import build
from tests.runtime.training import OPTIMIZERS, trainable, wrap

REFUSALS = 10
NUM_KINDS = 5


def _held() -> tuple[int, int]:
    """Count this process's threads, those of libraries included, and open descriptors."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def _within(before: tuple[int, int]) -> tuple[int, int]:
    """Count until there are no more than before: threads that were told to end take a moment."""
    deadline = time.monotonic() + 30
    while any(now > then for now, then in zip(_held(), before, strict=True)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return _held()


def _cannot(*_arguments: Any, **_options: Any) -> Any:
    raise NotImplementedError("this module takes no hooks")


def _refuse_often(rank: int, _size: int, transport: str) -> Any:
    def attempt(number: int) -> str:
        model = build("conv")
        kinds: list[dict[str, Any]] = [
            {"op": "avg"},  # refused as arguments are checked
            {"plan": "schedule.json"},  # as what says where to ask for one is
            {"mode": ("barrier", "overlap")[rank]},  # as they are compared
            {"broadcast_parameters": False},  # as weights are
            {"timeout_s": 30.0},  # not refused: the model cannot be hooked
        ]
        if number % NUM_KINDS == NUM_KINDS - 1:
            model.register_forward_pre_hook = _cannot  # type: ignore[method-assign]  # to fail late
        with torch.no_grad():
            model.get_parameter("head.bias").add_(rank)
        try:
            wrap(transport, OPTIMIZERS["sgd"](trainable(model)), model, **kinds[number % NUM_KINDS])
        except (PaceError, NotImplementedError) as error:
            return type(error).__name__
        return "not refused"

    # What libraries open once, they have opened.
    kept = [attempt(number) for number in range(NUM_KINDS)]
    before = _held()
    kept += [attempt(number) for number in range(REFUSALS)]
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("pace")]
    return kept, before, _within(before), names


def test_refusals_leave_nothing_behind(transport: str) -> None:
    """Ten refusals at different moments: as many threads and descriptors as before."""
    for kept, before, after, names in run_ranks(
        _refuse_often, 2, transport, backend=cast("Backend", transport), timeout_s=200
    ):
        assert kept[:NUM_KINDS] == [*["InvalidOptions"] * 3, "InvalidUse", "NotImplementedError"]
        assert "not refused" not in kept
        assert after[0] <= before[0], names
        assert after[1] <= before[1]
