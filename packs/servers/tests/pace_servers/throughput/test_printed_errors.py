"""What the paper on throughput prints, transcribed, beside what this project computes."""

import pytest

from pace_servers.documents.fleet import Fleet
from pace_servers.throughput.simulate import simulate_steps
from tests.documentation.test_printed_errors import says
from tests.pace.documents.step_documents import MB, document


def test_a_link_is_shared_by_those_that_are_left() -> None:
    """Throughput paper, Algorithm 3.1, line 34: three workers pull 4, 8 and 8 MB over 4 MB/s."""
    ops = (("down", "downlink", 4 * MB), ("more", "downlink", 4 * MB, ("down",)))
    steps = document(ops, [[0, 0]], 4 * MB)
    fleet = Fleet(leave_s=(3.0, None, None))
    run = simulate_steps(steps, 3, fleet=fleet, steps=1, skip=0, num_recorded=1)
    assert run.op_end_s[1:, 0, 1] == pytest.approx(5.0)

    left_mb, active, now = [4.0, 8.0, 8.0], 3, 0.0
    ends = [0.0] * 3
    while any(left_mb):
        pulling = [worker for worker in range(3) if left_mb[worker] > 0]
        rate = 4.0 / active
        least = min(left_mb[worker] for worker in pulling)
        now += least / rate
        for worker in pulling:
            left_mb[worker] -= least
            if left_mb[worker] == 0:
                ends[worker] = now
                active = 1  # as printed; each worker that leaves should make it one less
    assert ends == [3, 4, 4]
    says("both end after 5 s", "As printed they end after 4 s")
