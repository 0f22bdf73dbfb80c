"""How early a segment is handed over to Horovod: by one of its cycles, and what else a hand-over takes."""

import os

import pytest

from tests.runtime.launch import run_ranks
from tests.runtime.training import meet


def _hand_over_s(rank: int, size: int, cycle: str | None) -> float:
    del rank, size
    os.environ.pop("HOROVOD_CYCLE_TIME", None)
    if cycle is not None:
        os.environ["HOROVOD_CYCLE_TIME"] = cycle
    meet("horovod")
    from pace.runtime.transports.horovod import HorovodTransport

    transport = HorovodTransport(timeout_s=60.0)
    transport.close(failed=False)
    return transport.hand_over_s


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("cycle", "expected_s"), [(None, 2.5e-3), ("5", 6.5e-3), ("0.5", 2e-3), ("soon", 2.5e-3), ("nan", 2.5e-3)]
)
def test_hand_over_follows_horovods_cycle(cycle: str | None, expected_s: float) -> None:
    """As told by the environment; by Horovod's own default where nothing, or no number, is there."""
    assert run_ranks(_hand_over_s, 1, cycle, backend="horovod") == [pytest.approx(expected_s)]
