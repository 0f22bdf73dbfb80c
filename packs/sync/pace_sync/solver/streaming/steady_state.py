"""The steady state of fixed fragments: how long a period takes in the end, and when everything happens in it.

One period maps the times at its beginning (the last step's end, each link's, each fragment's that is still
under way) to those at its end. The map is linear over (max, +), and from every reachable state every other is
reached, so it has one eigenvalue: the largest mean of a cycle, which is the period (Baccelli, Cohen, Olsder,
Quadrat, Synchronization and Linearity, 1992, theorem 3.23). An eigenvector gives times that repeat. Playing
periods from an idle start would not do: a link that is a little too slow falls behind for a long time before
anybody waits for it.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingSends:
    """Fragments of fixed content; of those sent at one boundary over one link, the earlier goes first.

    Attributes
    ----------
    transfer_s : array of shape (num_fragments,)
    link, send_step, delay_steps : integer arrays of shape (num_fragments,)
        Boundary 0 is the beginning of the period. Delays are less than the period.
    step_s : float
        Compute time of a step.
    period_steps : int
    """

    transfer_s: FloatArray
    link: IntArray
    send_step: IntArray
    delay_steps: IntArray
    step_s: float
    period_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Times of one period in seconds; 0 is when boundary 0 is reached, before the waiting there.

    Attributes
    ----------
    period_s
    start_s, end_s : arrays of shape (num_fragments,)
        Of the transfers of fragments that are sent in this period; they may end in the next one.
    wait_s : array of shape (period_steps,)
        Waiting at each boundary.
    """

    period_s: float
    start_s: FloatArray
    end_s: FloatArray
    wait_s: FloatArray

    def utilization(self, compute_s: float) -> float:
        """Return the share of time in which steps run."""
        return compute_s / self.period_s


def steady_state(sends: StreamingSends) -> SteadyState:
    """Return the steady state; O((steps + fragments) k + k^3) for k fragments under way at boundary 0."""
    count, steps = len(sends.transfer_s), sends.period_steps
    if not count:
        waits = np.zeros(steps)
        return SteadyState(period_s=steps * sends.step_s, start_s=waits[:0], end_s=waits[:0], wait_s=waits)
    order = np.argsort(sends.send_step, kind="stable").tolist()
    # The state: when the last step of the period before ended, each used link, fragments under way.
    links = sorted(set(sends.link.tolist()))
    due = sends.send_step + sends.delay_steps
    carried = [fragment for fragment in order if due[fragment] >= steps]
    size = 1 + len(links) + len(carried)
    unit = np.where(np.eye(size, dtype=bool), 0.0, -np.inf)
    matrix, *_ = _period(sends, order, links, carried, unit)
    period = _largest_mean(matrix)
    state = _eigenvector(matrix - period)[:, None]
    _, starts, ends, reached, left = _period(sends, order, links, carried, state)
    began = float(reached[0, 0])
    return SteadyState(
        period_s=period,
        start_s=starts[:, 0] - began,
        end_s=ends[:, 0] - began,
        wait_s=left[:, 0] - reached[:, 0],
    )


def _period(
    sends: StreamingSends, order: list[int], links: list[int], carried: list[int], state: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Play one period for each column of a state; return the next state and all times."""
    steps, columns = sends.period_steps, state.shape[1]
    free = {link: state[1 + place] for place, link in enumerate(links)}
    before = {fragment: state[1 + len(links) + place] for place, fragment in enumerate(carried)}
    starts = np.empty((len(order), columns))
    ends = np.empty((len(order), columns))
    reached = np.empty((steps, columns))
    left = np.empty((steps, columns))
    to_send: dict[int, list[int]] = {}
    to_await: dict[int, list[int]] = {}
    for fragment in order:
        to_send.setdefault(int(sends.send_step[fragment]), []).append(fragment)
        due = int(sends.send_step[fragment] + sends.delay_steps[fragment])
        to_await.setdefault(due % steps, []).append(fragment)
    now = state[0]
    for boundary in range(steps):
        # The state holds when boundary 0 is reached.
        now = now + sends.step_s if boundary else now
        reached[boundary] = now
        for fragment in to_send.get(boundary, ()):
            link = int(sends.link[fragment])
            starts[fragment] = np.maximum(now, free[link])
            free[link] = ends[fragment] = starts[fragment] + sends.transfer_s[fragment]
        for fragment in to_await.get(boundary, ()):
            now = np.maximum(now, before[fragment] if fragment in before else ends[fragment])
        left[boundary] = now
    following = [now + sends.step_s, *(free[link] for link in links), *(ends[each] for each in carried)]
    return np.stack(following), starts, ends, reached, left


def _largest_mean(matrix: FloatArray) -> float:
    """Karp's theorem: the largest mean weight of a cycle."""
    size = len(matrix)
    walks = [np.where(np.arange(size) == 0, 0.0, -np.inf)]
    for _ in range(size):
        walks.append(np.max(matrix + walks[-1][None, :], axis=1))
    last, earlier = walks[-1], np.stack(walks[:-1])
    lengths = size - np.arange(size)
    with np.errstate(invalid="ignore"):
        means = (last[None, :] - earlier) / lengths[:, None]
    means[np.isneginf(earlier)] = np.inf  # no such walk: no restriction
    least = np.min(means, axis=0)
    return float(np.max(least[np.isfinite(last)]))


def _eigenvector(matrix: FloatArray) -> FloatArray:
    """Return an eigenvector for the eigenvalue 0: a column, of a critical node, of all longest walks."""
    longest = matrix.copy()
    for through in range(len(matrix)):
        longest = np.maximum(longest, longest[:, through, None] + longest[None, through, :])
    critical = int(np.argmax(np.diag(longest)))
    return np.asarray(longest[:, critical])
