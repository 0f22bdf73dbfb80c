"""Windows under load: a call starts when the last rank is ready, and takes longer while compute runs.

The order of the calls is fixed. A call that starts while an op runs takes `extra_s` longer; compute is taken
as one stream, in which the consumers of groups follow the backward pass, longest tail first.

Theorem. For a fixed order without extra time, the window is a convex and nondecreasing function of ready
times, durations and tails: it is a maximum of sums of them, one sum for each path through the calls. So its
expectation over random ready times, durations and tails is at least the window at their means (Jensen's
inequality), and this at least every lower bound at the means. Extra time is never negative and only lengthens
a window.
"""

from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from pace.solver.arrays import FloatArray, IntArray

# Compute that ends when a call starts does not run beside it: times differ by this share through rounding.
ROUNDING = 1e-9


Knots = tuple[FloatArray, FloatArray, float]


class Compute(NamedTuple):
    """The compute of a mean window, in seconds.

    Attributes
    ----------
    backward_s
        When the ops end that wait for no gradient.
    backward_spread_s
        Standard deviation of `backward_s` over ranks.
    forward_s
        Duration of the ops after that.
    """

    backward_s: float
    backward_spread_s: float
    forward_s: float


class CallCosts(NamedTuple):
    """What calls take, as knots of a curve (``pace.solver.cost_curve.CostCurve.knots``).

    Attributes
    ----------
    cost, extra
        Seconds of a call, and how many seconds longer it takes if it starts while compute runs.
    slowdown
        How many seconds of wall time a second of compute takes while the network is busy.
    """

    cost: Knots
    extra: Knots
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls of a plan in the order in which they are sent, and their groups.

    Attributes
    ----------
    ready, spread, tail : arrays of shape (num_groups,)
        Mean ready time of each group, its standard deviation over ranks, and its tail, in seconds.
    groups : integer array of shape (num_calls,)
        The group of each call.
    durations, extra : arrays of shape (num_calls,)
        Seconds of each call, and how many seconds longer it takes if it starts while compute runs.
    """

    ready: FloatArray
    spread: FloatArray
    tail: FloatArray
    groups: IntArray
    durations: FloatArray
    extra: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """Windows and busy time of the network, by window; starts and ends of calls in the last one; seconds."""

    windows: FloatArray
    busy: FloatArray
    starts: FloatArray
    ends: FloatArray


class LoadedWindows(NamedTuple):
    """Random windows, the same for all plans that are compared.

    Attributes
    ----------
    slower, lateness : arrays of shape (num_windows,)
        By which factor the slowest rank's compute is longer than the mean, and by how many standard
        deviations the latest rank is behind the mean rank.
    """

    slower: FloatArray
    lateness: FloatArray

    @classmethod
    def mean(cls) -> "LoadedWindows":
        """Return one window in which all ranks are as in the mean."""
        return cls(slower=np.ones(1), lateness=np.zeros(1))

    @classmethod
    def sample(cls, ranks: int, *, count: int, deviation: float, seed: int) -> "LoadedWindows":
        """Return `count` windows of the latest of `ranks` ranks: quantiles of equal weight, in random pairs.

        Parameters
        ----------
        deviation
            Standard deviation of a rank's speed, relative to the mean.
        """
        shares = (np.arange(count) + 0.5) / count
        normal = NormalDist()
        latest = np.array([normal.inv_cdf(share ** (1 / ranks)) for share in shares.tolist()])
        order = np.random.Generator(np.random.PCG64(seed)).permutation(count)
        return cls(slower=1 + deviation * latest, lateness=latest[order])

    def replay(self, compute: Compute, calls: Calls) -> LoadedRun:
        """Return what these calls do in each window. O(windows * (groups + calls))."""
        from pace.solver.kernels import loaded as kernel

        segments = np.bincount(calls.groups, minlength=len(calls.ready))
        sent = np.flatnonzero(segments)
        by_tail = sent[np.argsort(-calls.tail[sent], kind="stable")]
        found = LoadedRun(
            windows=np.empty(len(self.slower)),
            busy=np.empty(len(self.slower)),
            starts=np.empty(len(calls.groups)),
            ends=np.empty(len(calls.groups)),
        )
        kernel.replay(
            calls.ready,
            calls.spread,
            calls.tail,
            by_tail,
            segments,
            calls.groups,
            calls.durations,
            calls.extra,
            compute.backward_s,
            compute.backward_spread_s,
            compute.forward_s,
            self.slower,
            self.lateness,
            found.starts,
            found.ends,
            found.windows,
            found.busy,
        )
        return found
