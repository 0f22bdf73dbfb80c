"""Wrappers that are dropped without ``close()``, and collected in whatever thread collects them."""

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any, cast

import pytest

from pace.runtime.engine.engine import Engine
from pace.runtime.engine.sends import SegmentSend
from tests.runtime.launch import Backend, run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap

STEPS = 3


def _drop_in_flight(rank: int, _size: int, transport: str, dropped: Path) -> Any:
    """Drop the wrapper while the last sums are under way; who completes one of them also collects it."""
    model = build("conv")
    collectors: list[threading.Thread] = []
    own = Engine._complete

    def complete(engine: Engine, segment: SegmentSend, error: BaseException | None) -> None:
        if rank == 0 and dropped.exists():
            gc.collect()  # as by chance
            collectors.append(threading.current_thread())
        own(engine, segment, error)

    pytest.MonkeyPatch().setattr(Engine, "_complete", complete)  # until this process ends
    optimizer = wrap(transport, OPTIMIZERS["adam"](trainable(model)), model)
    for step, batch in enumerate(batches("conv", STEPS, rank)):
        optimizer.zero_grad()
        while rank == 1 and step == STEPS - 1 and not dropped.exists():
            time.sleep(0.01)
        backward(model(*batch))
        optimizer.step()
    if rank == 1:
        optimizer.close()
        return None, weights(model)
    gc.disable()
    wrapper = weakref.ref(optimizer)
    held_in_a_cycle: list[Any] = [optimizer]  # as trainers hold it
    held_in_a_cycle.append(held_in_a_cycle)
    del optimizer, held_in_a_cycle
    dropped.touch()
    deadline = time.monotonic() + 20
    while (left := _ours()) and time.monotonic() < deadline:
        time.sleep(0.05)
    elsewhere = bool(collectors) and threading.current_thread() not in collectors
    return (wrapper() is None, left, elsewhere), weights(model)


def _ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pace")]


def test_who_collects_a_wrapper_does_not_wait_for_itself(transport: str, tmp_path: Path) -> None:
    """The last updates are made, all threads end, and the weights are those of the rank that closed."""
    (found, mine), (_, other) = run_ranks(
        _drop_in_flight, 2, transport, tmp_path / "dropped", backend=cast("Backend", transport), timeout_s=100
    )
    assert found == (True, [], True)
    assert all((mine[name] == other[name]).all() for name in other)
