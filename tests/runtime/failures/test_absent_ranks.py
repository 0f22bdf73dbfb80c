"""Ranks that do not come, or die, while the others wrap: an error within the time-out that names them."""

import datetime
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

import pace.runtime.optimizer.start
from pace.errors import CommunicationFailed
from tests.runtime.launch import Backend, Outcome, run_ranks, try_jobs, try_ranks
from tests.runtime.logs import captured_events
from tests.runtime.models import batches, build, weights
from tests.runtime.training import OPTIMIZERS, backward, equal_bits, meet, trainable, wrap

pytestmark = pytest.mark.races_with_machine(
    reason="ranks must come, or be named, within a time-out of seconds", fixtures=("ended",)
)

SIZE = 3
TIMEOUT_S = 4.0

# Longer than the test may take, as torch's own half hour is.
JOB_TIMEOUT_S = 1000.0


def _join(rank: int, size: int, transport: str, port: int) -> None:
    if transport == "horovod":
        import pace.runtime.horovod

        pace.runtime.horovod.init()
        return
    store = TCPStore("127.0.0.1", port, size, False, datetime.timedelta(seconds=JOB_TIMEOUT_S))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)


def _wrap_all_but_one(
    rank: int, size: int, transport: str, how: str, absent: int, port: int, folder: str
) -> Any:
    _join(rank, size, transport, port)
    meet(transport)
    model = build("conv")
    optimizer = OPTIMIZERS["sgd"](trainable(model))
    if rank == absent and how == "late":
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while len(list(Path(folder).iterdir())) < size - 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        return None
    if rank == absent and how == "killed before":
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.MonkeyPatch.context() as patch:
        if rank == absent:
            patch.setattr(
                pace.runtime.optimizer.start, "exchange", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            )
        with captured_events() as events:
            try:
                wrap(transport, optimizer, model, timeout_s=TIMEOUT_S)
            except Exception as error:
                Path(folder, str(rank)).touch()
                stalls = [each["peers"] for each in events if each["event"] == "pace.stall"]
                return type(error).__name__, str(error), stalls
    return None


def _end_without_one(transport: str, how: str, absent: int, folder: Path) -> list[Outcome]:
    store = TCPStore("127.0.0.1", 0, SIZE, True, wait_for_workers=False)
    return try_ranks(
        _wrap_all_but_one,
        SIZE,
        transport,
        how,
        absent,
        store.port,
        str(folder),
        backend="horovod" if transport == "horovod" else "none",
        expect_lost=[] if how == "late" else [absent],
        # What Horovod and the job's process group do at exit waits for the rank that is gone.
        environment={"LEAVE_AT_ONCE": "1"},
    )


ABSENT = [("late", 1), ("killed before", 0), ("killed meanwhile", 0), ("killed meanwhile", 1)]


@pytest.fixture(scope="module")
def ended(transport: str, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[Outcome]]:
    """How all ranks ended, however one of them was absent."""
    return try_jobs(
        {
            (how, absent): partial(
                _end_without_one, transport, how, absent, tmp_path_factory.mktemp("absent")
            )
            for how, absent in ABSENT
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(("how", "absent"), ABSENT)
def test_a_rank_that_does_not_wrap_is_named(
    ended: dict[tuple[str, int], list[Outcome]], transport: str, how: str, absent: int
) -> None:
    """The others raise at their own time-out, whatever that of the job's store; no rank keeps the store.

    Long before, the first of them logs which rank did not come.
    """
    told = []
    for outcome in ended[how, absent]:
        if outcome.rank == absent:
            continue
        assert outcome.result is not None, outcome.output
        kind, message, stalls = outcome.result
        told += stalls
        assert kind == "CommunicationFailed"
        fault = f"rank {absent} has not wrapped its optimizer"
        if how == "killed meanwhile":
            fault = f"rank {absent} gives no sign of life"
        if transport == "horovod" and absent == 0 and how != "late":
            assert "is gone: the store that it keeps does not answer" in message
            fault = "rank 0"
        assert fault in message
    if how == "late":
        (line,) = told
        assert line.startswith(
            f"rank {absent} has not wrapped its optimizer: make the same call on every rank"
        )


def _end_unwrapped(rank: int, size: int, port: int) -> str:
    _join(rank, size, "gloo", port)
    meet("gloo")
    if rank == 1:
        return ""
    model = build("conv")
    with pytest.raises(CommunicationFailed) as raised:
        wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, timeout_s=JOB_TIMEOUT_S)
    return str(raised.value)


def test_a_rank_that_ends_without_wrapping_ends_the_wait_of_others() -> None:
    """Long before their time-out: its process is gone."""
    store = TCPStore("127.0.0.1", 0, SIZE, True, wait_for_workers=False)
    outcomes = try_ranks(_end_unwrapped, SIZE, store.port, backend="none", environment={"LEAVE_AT_ONCE": "1"})
    for outcome in outcomes:
        assert outcome.result is not None, outcome.output
        if outcome.rank != 1:
            assert "rank 1 has not wrapped its optimizer: make the same call on every rank" in outcome.result


def _wrap_after_one_rank_failed(rank: int, _size: int, transport: str) -> Any:
    """Rank 1 alone fails, before it looks for the others; then all ranks wrap rightly, twice."""
    meet(transport)
    raised = []
    found = []
    for attempt in range(3):
        model = build("conv")
        wrong: dict[str, Any] = {"bogus": 1} if rank == 1 and attempt == 0 else {}
        meet(transport)
        try:
            optimizer = wrap(
                transport,
                OPTIMIZERS["sgd"](trainable(model)),
                model,
                timeout_s=TIMEOUT_S if attempt == 0 else 60.0,
                mode="overlap",
                **wrong,
            )
        except Exception as error:
            raised.append(type(error).__name__)
            continue
        for batch in batches("conv", 2, rank):
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        optimizer.close()
        found.append(weights(model))
    return raised, found


@pytest.mark.slow
def test_ranks_wrap_again_after_one_of_them_failed_to(transport: str) -> None:
    """Ranks have tried to wrap a different number of times, and still meet."""
    backend = cast("Backend", transport)
    ranks = run_ranks(_wrap_after_one_rank_failed, 2, transport, backend=backend, timeout_s=240)
    assert [raised for raised, _ in ranks] == [["CommunicationFailed"], ["InvalidOptions"]]
    (_, first), (_, second) = ranks
    assert len(first) == 2
    assert all(equal_bits(one, other) for one, other in zip(first, second, strict=True))
