"""Law 6 where updates are sharded: a rank that is gone between the halves."""

import os
import signal
import threading
import time
from typing import Any

import pytest

from tests.runtime.launch import Backend, try_ranks
from tests.runtime.models import batches, build
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap

SIZE = 3


def _lose_a_rank(rank: int, _size: int, where: str, backend: Backend) -> Any:
    model = build("conv")
    optimizer: Any = wrap(backend, OPTIMIZERS["adam"](trainable(model)), model, sharding="on", timeout_s=10.0)
    threads = {thread.ident for thread in threading.enumerate() if not thread.name.startswith("pace")}
    try:
        for step, batch in enumerate(batches("conv", 6, rank)):
            optimizer.zero_grad()
            backward(model(*batch))
            if step == 3 and rank == 1 and where == "between the halves":
                optimizer._rounds.engine.submit = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
            if step == 3 and rank == 1 and where == "before the norm":
                optimizer._transport.gather = lambda _: os.kill(os.getpid(), signal.SIGKILL)
            optimizer.clip_grad_norm_(1.0)
            optimizer.step()
    except Exception as error:
        optimizer.close()
        deadline = time.monotonic() + 60
        while (
            left := [t.name for t in threading.enumerate() if t.ident not in threads]
        ) and time.monotonic() < deadline:
            time.sleep(0.05)
        return type(error).__name__, str(error), left
    return None


@pytest.mark.slow
@pytest.mark.races_with_machine(reason="survivors must name the lost rank within a time-out of seconds")
@pytest.mark.parametrize("where", ["before the norm", "between the halves"])
def test_a_rank_killed_between_the_halves_is_an_error_on_the_others(where: str, transport: Backend) -> None:
    """It has summed its rows, and updates or gathers nothing: the others raise, name it, leave no thread."""
    outcomes = try_ranks(_lose_a_rank, SIZE, where, transport, expect_lost=[1], backend=transport)
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.result is not None, outcome.output
        kind, message, left = outcome.result
        assert kind == "CommunicationFailed"
        # Over Horovod the store ends with rank 0, which may notice first, say so and be gone.
        keeper_gone = transport == "horovod" and outcome is outcomes[2] and "rank 0 is gone" in message
        assert "rank 1 " in message.split(":", 1)[1] or keeper_gone
        assert left == []
