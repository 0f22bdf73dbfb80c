"""What marks cost a loop whose device waits for its host, taken out of the ops.

The host queues kernels and marks. While the device is behind, a mark costs it nothing. Where the device has
caught up and waits for the host, every mark since it last waited makes that wait longer: together by 30 to
50 % of an iteration of bfloat16 on an H100. Plain iterations, recorded between those with marks, say by how
much all marks make an iteration longer. All marks count as equally long, and what they cost is taken from the
intervals in which the device was waiting.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MOST_S = 60e-6
"""The most that a mark may cost: its hook takes 3 to 15 us, and calling the hook as long again or more."""
MOST_SHARE = 0.5
"""Of an interval: the rest is taken for its kernels."""
_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkTimes:
    """When marks were queued and reached; arrays of shape (num_iterations, num_marks), in seconds.

    Attributes
    ----------
    reached_s
        When the device reached the marks, on its clock.
    queued_s
        When the host had queued them, on its clock.
    """

    reached_s: Array
    queued_s: Array

    def device_waits(self) -> npt.NDArray[np.bool_]:
        """Return for each interval whether the device caught up with the host in it.

        It did if it reached the interval's first mark, and so was done with all earlier work, before the host
        had queued the next mark. The clocks have different zeros: in every iteration the shortest time from
        queueing to reaching is taken as none, as an iteration that marks make longer has such a mark.
        """
        behind_s = self.reached_s - self.queued_s
        behind_s = behind_s - behind_s.min(axis=1, keepdims=True)
        return np.asarray(behind_s[:, :-1] < np.diff(self.queued_s, axis=1))


def without_marks(
    intervals_s: Array,
    times: MarkTimes,
    excess_s: float,
    in_ops: npt.NDArray[np.bool_],
    typical: npt.NDArray[np.intp],
) -> Array:
    """Return the intervals shorter by what their marks cost.

    Parameters
    ----------
    intervals_s : array of shape (num_iterations, num_intervals)
    excess_s
        By how much marks make a typical iteration longer. At most this is taken away from an iteration on
        average; less if a mark would have to cost more than `MOST_S`.
    in_ops : array of shape (num_intervals,)
        The intervals that belong to ops.
    typical
        The iterations over which the average is taken.
    """
    waits = times.device_waits()
    if excess_s <= 0 or not (waits & in_ops).any():
        return intervals_s
    most_s = MOST_SHARE * intervals_s

    def taken(cost_s: float) -> Array:
        found = np.zeros_like(intervals_s)
        lead_s = np.zeros(len(intervals_s))  # that marks have cost the host since the device last waited
        for number in range(intervals_s.shape[1]):
            lead_s += cost_s
            found[:, number] = np.where(waits[:, number], np.minimum(lead_s, most_s[:, number]), 0.0)
            lead_s -= found[:, number]
        return np.where(in_ops, found, 0.0)

    low_s, high_s = 0.0, MOST_S
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        if taken(middle_s)[typical].sum(axis=1).mean() > excess_s:
            high_s = middle_s
        else:
            low_s = middle_s
    return np.asarray(intervals_s - taken(low_s))
