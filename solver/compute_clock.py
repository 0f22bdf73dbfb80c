"""Compute that traffic slows down: a clock on which ops are not slowed, and its conversion to wall time.

Model. While the network carries a transfer, every op of the window progresses at the rate 1 / s, otherwise at
the rate 1. Here s >= 1 is the profile's `compute_slowdown`. Transfers are not slowed.

Theorem. Let the *compute clock* run at the rate 1 / s while the network carries a transfer, and at the rate 1
otherwise. On it an op takes its duration f, whatever the traffic, and a transfer of p seconds takes p / s.
So on it every window is one without slow-down, in which each transfer takes p / s. If that window lasts W and
the network is busy during D of it (both on the compute clock), its wall time is W + (s - 1) D.

Proof. By definition an op's progress and the clock advance at the same rate while it runs, and during a
transfer the clock advances by 1 / s for each second. Order, releases and dependencies are the same on both
clocks, because neither ever stops. Every transfer ends within the window. So a second of the clock takes s
seconds of wall time during D, and one second during the remaining W - D.

Corollaries, where P = s D is the traffic in wall time:

1. The transfers of fixed segments have the same P in every order. So the schedule that minimizes the window
   on the compute clock minimizes it in wall time: longest tail first on (r, p / s, q) stays optimal, with
   preemption that is free, and T* = max(C0, C*(r, p / s, q)) + (1 - 1 / s) P.
2. Let W' be a lower bound on every window on the compute clock, and P' one on every P. Then
   T >= W' + (1 - 1 / s) P'. With W' >= C0 this says that traffic which overlaps with compute lengthens it.
   The bound is never less than the one without slow-down: a set of transfers that proves W' = r + p / s + q
   has p <= P', so the sum is at least r + p + q.
3. Each additional call costs (1 - 1 / s) of its latency, even where compute hides the call.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pace.solver.arrays import FloatArray


@dataclass(slots=True)
class ComputeClock:
    """Converts between the compute clock and wall time; both are in seconds and start at 0.

    Attributes
    ----------
    slowdown
        The factor s by which transfers slow compute. With 1 both clocks are the same.
    """

    slowdown: float
    _compute_s: list[float] = field(default_factory=lambda: [0.0])
    _wall_s: list[float] = field(default_factory=lambda: [0.0])

    @classmethod
    def carrying(cls, slowdown: float, starts_s: FloatArray, ends_s: FloatArray) -> "ComputeClock":
        """Return the clock for transfers that do not overlap, given on the compute clock, in any order.

        Parameters
        ----------
        starts_s, ends_s : arrays of shape (num_transfers,)
            When each transfer starts and ends.
        """
        clock = cls(slowdown)
        if slowdown != 1:
            # What takes no time comes before what starts at the same moment and takes some.
            for at in np.lexsort((ends_s, starts_s)).tolist():
                clock.carry(float(starts_s[at]), float(ends_s[at]))
        return clock

    @classmethod
    def observed(cls, slowdown: float, carried: Iterable[tuple[float, float]]) -> "ComputeClock":
        """Return the clock for transfers that do not overlap, given as (start, end) in wall time."""
        clock = cls(slowdown)
        for start_s, end_s in sorted(carried) if slowdown != 1 else ():
            begin_s = float(clock.compute_s(start_s))
            clock.carry(begin_s, begin_s + (end_s - start_s) / slowdown)
        return clock

    def carry(self, start_s: float, end_s: float) -> None:
        """Add a transfer, on the compute clock; it must not start before the last added one ends."""
        for at, rate in ((start_s, 1.0), (end_s, self.slowdown)):
            self._wall_s.append(self._wall_s[-1] + (at - self._compute_s[-1]) * rate)
            self._compute_s.append(at)

    def wall_s(self, compute_s: npt.ArrayLike) -> FloatArray:
        """Convert moments of the compute clock to wall time, given the transfers added so far."""
        return self._translated(compute_s, self._compute_s, self._wall_s)

    def compute_s(self, wall_s: npt.ArrayLike) -> FloatArray:
        """Convert moments of wall time to the compute clock, given the transfers added so far."""
        return self._translated(wall_s, self._wall_s, self._compute_s)

    def _translated(self, at: npt.ArrayLike, known: list[float], wanted: list[float]) -> FloatArray:
        moments = np.asarray(at, dtype=np.float64)
        if self.slowdown == 1:
            return moments
        return np.interp(moments, known, wanted) + np.maximum(moments - known[-1], 0.0)
