"""What marks cost is taken from the ops in which the device waited for its host, and from no others."""

import numpy as np
import pytest

from pace.runtime.capture.recorder import MOST_S, Array, MarkTimes, without_marks

LAUNCH_S = 8e-6
HOOK_S = 15e-6
DISPATCH_S = 5e-6
FIRST = np.array([0])


def run(host_s: Array, device_s: Array, *, marked: bool) -> tuple[Array, MarkTimes]:
    """Run ops that the host queues in `host_s` and the device computes in `device_s`, after a mark each.

    Every op is one kernel, queued at the end of its time on the host. Returns intervals and times, each of
    one row.
    """
    host, device = 3.0, 0.0
    reached, queued = [], []
    for queueing_s, kernel_s in zip([*host_s, 0.0], [*device_s, 0.0], strict=True):
        host += HOOK_S if marked else 0.0
        queued.append(host)
        host += DISPATCH_S if marked else 0.0
        device = max(device, queued[-1] - 3.0 + LAUNCH_S)
        reached.append(device)
        host += queueing_s
        device = max(device, host - 3.0 + LAUNCH_S) + kernel_s
    times = MarkTimes(reached_s=np.array([reached]) + 7.0, queued_s=np.array([queued]))
    return np.diff(times.reached_s, axis=1), times


def corrected(host_s: Array, device_s: Array) -> tuple[Array, Array, Array]:
    """Return the intervals of a plain run, of one with marks, and the latter corrected."""
    plain_s, _ = run(host_s, device_s, marked=False)
    marked_s, times = run(host_s, device_s, marked=True)
    in_ops = np.ones(plain_s.shape[1], dtype=np.bool_)
    excess_s = float(marked_s.sum() - plain_s.sum())
    return plain_s, marked_s, without_marks(marked_s, times, excess_s, in_ops, FIRST)


def test_a_loop_that_waits_for_its_host() -> None:
    """Kernels are shorter than queueing them: an op is as long as its host needs, give or take a kernel."""
    host_s = np.linspace(40e-6, 120e-6, 50)
    plain_s, marked_s, found_s = corrected(host_s, np.full(50, 10e-6))
    assert marked_s.sum() > 1.2 * plain_s.sum()
    assert found_s.sum() == pytest.approx(plain_s.sum(), rel=1e-6)
    assert found_s == pytest.approx(plain_s, abs=10e-6)


def test_a_loop_whose_device_is_behind() -> None:
    """Marks cost a busy device nothing, and no op becomes shorter."""
    plain_s, marked_s, found_s = corrected(np.full(50, 40e-6), np.linspace(200e-6, 400e-6, 50))
    assert found_s.sum() == pytest.approx(plain_s.sum(), rel=1e-3)
    assert found_s[0, 1:] == pytest.approx(marked_s[0, 1:], abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_a_pass_of_each_kind(seed: int) -> None:
    """A forward pass that waits for the host, and a backward pass that does not, keep their lengths."""
    draw = np.random.default_rng(seed)
    host_s = np.concatenate([draw.uniform(40e-6, 120e-6, 60), draw.uniform(20e-6, 60e-6, 60)])
    device_s = np.concatenate([draw.uniform(5e-6, 20e-6, 60), draw.uniform(200e-6, 600e-6, 60)])
    plain_s, marked_s, found_s = corrected(host_s, device_s)
    assert found_s.sum() == pytest.approx(plain_s.sum(), rel=1e-6)
    for half in (slice(60), slice(60, None)):
        assert found_s[0, half].sum() == pytest.approx(plain_s[0, half].sum(), rel=0.02)
    assert marked_s[0, :60].sum() > 1.15 * plain_s[0, :60].sum()


def test_no_mark_costs_more_than_hooks_can() -> None:
    """What another program slowed is not taken for the marks' cost: it stays in the report's error."""
    host_s, device_s = np.full(50, 160e-6), np.full(50, 10e-6)
    marked_s, times = run(host_s, device_s, marked=True)
    found_s = without_marks(marked_s, times, 1.0, np.ones(50, dtype=np.bool_), FIRST)
    assert marked_s - found_s == pytest.approx(np.full((1, 50), MOST_S), rel=1e-6)


def test_intervals_of_no_op_keep_their_length() -> None:
    """What capturing itself takes is no op's, and nothing is taken from it."""
    marked_s, times = run(np.full(4, 80e-6), np.full(4, 10e-6), marked=True)
    in_ops = np.array([True, False, True, False])
    found_s = without_marks(marked_s, times, 2 * HOOK_S, in_ops, FIRST)
    assert marked_s - found_s == pytest.approx(np.array([[HOOK_S, 0.0, HOOK_S, 0.0]]), abs=1e-9)
