"""Runs windows of a profile under a policy."""

from dataclasses import dataclass, replace

import numpy as np

from pace.documents.op_graph import Timing
from pace.documents.profile import Profile
from pace.errors import InvalidOptions
from pace.jitter import jittered_durations
from pace.simulation.traffic import Policy, Rules, Sender, Traffic, over_runs
from pace.solver.arrays import FloatArray, IntArray
from pace.solver.compute_clock import ComputeClock
from pace.solver.cost_curve import CostCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideCompute:
    """What makes transfers slower while compute runs.

    Attributes
    ----------
    extra
        How much longer a transfer takes as a function of its bytes.
    backward_s
        Until when compute runs in any case.
    tail_s : array of shape (num_gradients,)
        The tail of each gradient. After `backward_s`, compute runs while the consumers of gradients, longest
        tail first, have what they wait for.
    """

    extra: CostCurve
    backward_s: float
    tail_s: FloatArray


def carry(
    traffic: Traffic, rules: Rules, beside: BesideCompute | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return when every transfer starts and ends, in seconds.

    Whenever the credit admits one, the released transfer of smallest priority is handed over. Transfers are
    then served first come, first served, without preemption. O(n log n).
    """
    from pace.simulation import kernels

    num = len(traffic.release_s)
    starts, ends = np.empty(num), np.empty(num)
    none = np.zeros(0, dtype=np.int64)
    extra, tail = np.zeros(0), np.zeros(0)
    carried, first_carried, missing, by_tail = none, np.zeros(num + 1, dtype=np.int64), none, none
    backward_s = 0.0
    if beside is not None:
        extra, tail, backward_s = beside.extra(traffic.size_bytes), beside.tail_s, beside.backward_s
        carried, first_carried, missing = _carried(traffic)
        sent = np.flatnonzero(missing)
        by_tail = sent[np.argsort(-tail[sent], kind="stable")]
    kernels.carry(
        traffic.release_s,
        traffic.duration_s,
        traffic.size_bytes.astype(np.float64),
        np.argsort(traffic.priority, kind="stable"),
        traffic.after,
        rules.credit_bytes,
        rules.overshoots,
        rules.in_order,
        extra,
        carried,
        first_carried,
        missing,
        tail,
        by_tail,
        backward_s,
        starts,
        ends,
    )
    return starts, ends


def _carried(traffic: Traffic) -> tuple[IntArray, IntArray, IntArray]:
    """Return the gradients by transfer, where those of each transfer begin, and each gradient's transfers."""
    counts = np.array([len(carriers) for carriers in traffic.carriers], dtype=np.int64)
    transfers = np.concatenate([np.zeros(0, dtype=np.int64), *traffic.carriers])
    gradients = np.repeat(np.arange(len(counts)), counts)
    order = np.argsort(transfers, kind="stable")
    first = np.searchsorted(transfers[order], np.arange(len(traffic.release_s) + 1))
    return gradients[order], first, counts


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWindow:
    """One simulated iteration.

    Attributes
    ----------
    iteration_s
        Its length in seconds.
    durations_s : array of shape (num_ops,)
        The op durations of this window, without the slow-down by transfers (the profile's
        `compute_slowdown`).
    traffic
        The transfers.
    starts_s, ends_s : arrays of shape (num_transfers,)
        When each transfer started and ended, in seconds.
    arrival_s : array of shape (num_gradients,)
        When each gradient was reduced, in seconds.
    barrier
        Whether forward ops waited for all gradients.
    clock
        Converts between the compute clock and wall time. All times of a window are in wall time.
    """

    iteration_s: float
    durations_s: FloatArray
    traffic: Traffic
    starts_s: FloatArray
    ends_s: FloatArray
    arrival_s: FloatArray
    barrier: bool
    clock: ComputeClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The windows of a run."""

    windows: tuple[SimulatedWindow, ...]

    @property
    def iterations_s(self) -> FloatArray:
        """Lengths of all windows in seconds: an array of shape (num_windows,)."""
        return np.array([window.iteration_s for window in self.windows])

    @property
    def iteration_s(self) -> float:
        """Mean length of a window in seconds."""
        return float(self.iterations_s.mean())


def run_policy(
    profile: Profile, policy: Policy, *, iterations: int = 1, jitter: float = 0.0, seed: int = 0
) -> Simulation:
    """Simulate `iterations` windows of a profile under a policy.

    Parameters
    ----------
    iterations
        Number of windows.
    jitter
        Relative standard deviation of op durations, for ops without one in the profile. Durations are
        lognormal with the profile's mean. With 0, all ops have exactly the profile's durations.
    seed
        The same seed gives the same windows, for all policies.

    Notes
    -----
    Windows are simulated on the compute clock, where a `compute_slowdown` only makes transfers shorter, and
    then converted to wall time. This is exact by the theorem of ``pace.solver.compute_clock``.

    Raises
    ------
    InvalidOptions
        If `iterations` or `jitter` is out of range.
    """
    if iterations < 1:
        raise InvalidOptions(f"iterations is {iterations}: expected at least 1")
    if not 0 <= jitter <= 10:
        raise InvalidOptions(f"jitter is {jitter}: expected 0 to 10")
    sender = policy.prepare(profile)
    if jitter == 0:
        window = _run(sender, profile, profile.timing, profile.graph.durations_s)
        return Simulation(windows=(window,) * iterations)
    windows = []
    for durations in jittered_durations(profile, jitter=jitter, count=iterations, seed=seed):
        timing = profile.timing_of(replace(profile.graph, durations_s=durations))
        windows.append(_run(sender, profile, timing, durations))
    return Simulation(windows=tuple(windows))


def _run(sender: Sender, profile: Profile, timing: Timing, durations: FloatArray) -> SimulatedWindow:
    slowdown, extra = profile.compute_slowdown, profile.clocked_extra
    behind_norm = profile.update == "global-norm" and not sender.rules.sharded
    barrier = sender.rules.barrier or behind_norm
    traffic = sender.traffic(timing.ready_s)
    beside = None
    if extra is not None and not sender.rules.ideal:
        longest_s = float(timing.tail_s.max(initial=0.0))
        beside = BesideCompute(
            extra=extra,
            backward_s=timing.backward_s,
            tail_s=np.full_like(timing.tail_s, longest_s) if barrier else timing.tail_s,
        )
    starts, ends = carry(traffic, sender.rules, beside)
    if beside is not None:
        traffic = replace(traffic, duration_s=ends - starts)
    arrival = timing.ready_s.copy()
    counts = np.array([len(carriers) for carriers in traffic.carriers], dtype=np.int64)
    reduced = counts > 0
    if reduced.any():
        last = over_runs(np.maximum, ends[np.concatenate(traffic.carriers)], counts[reduced])
        arrival[reduced] = np.maximum(arrival[reduced], last)
    tail = timing.tail_s
    waits = arrival + tail
    if barrier and len(arrival):
        waits = arrival.max() + tail
    iteration_s = max(timing.compute_s, float(waits.max(initial=0.0)))
    clock = ComputeClock.carrying(slowdown, starts, ends)
    if slowdown != 1:
        iteration_s = float(clock.wall_s(iteration_s))
        starts, ends, arrival = clock.wall_s(starts), clock.wall_s(ends), clock.wall_s(arrival)
        released = clock.wall_s(traffic.release_s)
        traffic = replace(traffic, release_s=released, duration_s=traffic.duration_s * slowdown)
    return SimulatedWindow(
        iteration_s=iteration_s,
        durations_s=durations,
        traffic=traffic,
        starts_s=starts,
        ends_s=ends,
        arrival_s=arrival,
        barrier=barrier,
        clock=clock,
    )
