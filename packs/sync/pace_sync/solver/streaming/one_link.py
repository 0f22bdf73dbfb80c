"""When to send fixed fragments over one link, in a given order: a dynamic program, exact for one link.

Notation as in ``pace_sync.solver.streaming``.

**Theorem 3.** For one link, fixed fragments and a given cyclic order, some optimal plan has a fragment sent
at boundary 0 on an idle link, starts each next fragment when the link is free or at the boundary after that,
and lets workers wait for it at a boundary.

*Proof.* If some period has a wait, a transfer ends there, so the next fragment starts at a boundary or later.
If none has, start all transfers earlier by the least offset of a start in its step: no transfer then touches
more steps than before, and one starts at a boundary. Number that boundary 0. A fragment that starts later
than it could, within the same step, is sent at the same boundary and may be applied at the same ones: start
it earlier. If it starts two boundaries later or more, start it one boundary earlier: it touches as many
steps.

A state is how much compute of the period has run, `u`, and how long workers have waited, `w`, when a transfer
has ended. Of two states the one with less of both is at least as good: its link may idle until `u` is equal.
What is over when all `H c` has run is waited for at boundary `H`. The period is the least
`max(H c + w, u + w)` in the end.

Steps may be of unequal length, which is how waits for another link's fragments are made use of; with several
links it is a heuristic.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray

PRECISION = 1e-12
MOST_STATES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLinkTimes:
    """When each fragment is sent and applied, by place in the order.

    Attributes
    ----------
    send_steps, delays : lists of int
    sequence : list of int
        Places in the order in which the period's boundaries send them: those that are sent at its end, which
        is boundary 0 of the next one, come first.
    period_s
        The least period.
    exact
        Whether no state was left out.
    """

    send_steps: list[int]
    delays: list[int]
    sequence: list[int]
    period_s: float
    exact: bool


@dataclass(frozen=True, slots=True)
class _States:
    """States after a fragment, by increasing ``run_s``; arrays of shape (num_states,).

    Attributes
    ----------
    run_s, waited_s
        `u` and `w`.
    send, due
        Boundaries at which the fragment is sent and applied.
    before
        Places of the states before the fragment.
    """

    run_s: FloatArray
    waited_s: FloatArray
    send: IntArray
    due: IntArray
    before: IntArray

    def at(self, places: IntArray) -> "_States":
        """Return the states at these places."""
        return _States(
            self.run_s[places],
            self.waited_s[places],
            self.send[places],
            self.due[places],
            self.before[places],
        )


def send_in_order(transfer_s: FloatArray, step_lengths_s: FloatArray, most_delay: int) -> OneLinkTimes:
    """Return the best times of fragments in this order.

    Parameters
    ----------
    transfer_s : array of shape (num_fragments,)
    step_lengths_s : array of shape (period_steps,)
    most_delay : int
    """
    bounds = np.concatenate([[0.0], np.cumsum(step_lengths_s)])
    steps, compute = len(step_lengths_s), float(bounds[-1])
    slack = PRECISION * (compute + float(np.sum(transfer_s)))
    none = np.zeros(1, dtype=np.int64)
    states = _States(np.zeros(1), np.zeros(1), none, none, none)
    stages: list[_States] = []
    exact = True
    for taken in transfer_s.tolist():
        states = _undominated(_after(states, taken, bounds, most_delay, slack), slack)
        if len(states.run_s) > MOST_STATES:
            exact = False
            states = states.at(np.round(np.linspace(0, len(states.run_s) - 1, MOST_STATES)).astype(np.int64))
        stages.append(states)
    periods = np.maximum(compute, states.run_s) + states.waited_s
    at = int(np.argmin(periods))
    period = float(periods[at])
    sends: list[int] = []
    delays: list[int] = []
    for stage in reversed(stages):
        sends.append(int(stage.send[at]))
        delays.append(int(stage.due[at]) - sends[-1])
        at = int(stage.before[at])
    sends, delays = sends[::-1], delays[::-1]
    late = next((place for place, send in enumerate(sends) if send == steps), len(sends))
    return OneLinkTimes(
        send_steps=[send % steps for send in sends],
        delays=delays,
        sequence=[*range(late, len(sends)), *range(late)],
        period_s=period,
        exact=exact,
    )


def _after(states: _States, taken_s: float, bounds: FloatArray, most_delay: int, slack: float) -> _States:
    """Return all states after a fragment: each begin of it, and each boundary that may apply it."""
    steps = len(bounds) - 1
    # It begins when the link is free, or at the boundary after that.
    following = np.searchsorted(bounds, states.run_s + slack, side="right")
    before = np.repeat(np.arange(len(states.run_s)), 1 + (following <= steps))
    begin = states.run_s[before]
    later = np.concatenate([[False], before[1:] == before[:-1]])
    begin[later] = bounds[following[before[later]]]
    send = np.minimum(np.searchsorted(bounds, begin + slack, side="right") - 1, steps)
    end = begin + taken_s
    # Applied at each boundary up to the first one after its end: before that, workers wait.
    until = np.searchsorted(bounds, end - slack, side="left")
    counts = np.minimum(np.minimum(send + most_delay, steps), until) - send + 1
    each = np.repeat(np.arange(len(begin)), counts)
    due = send[each] + np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
    over = np.where(due == steps, 0.0, np.maximum(end[each] - bounds[due], 0.0))
    return _States(end[each] - over, states.waited_s[before[each]] + over, send[each], due, before[each])


def _undominated(states: _States, slack: float) -> _States:
    order = np.lexsort((states.waited_s, states.run_s))
    waited = states.waited_s[order]
    order = order[np.concatenate([[True], waited[1:] < np.minimum.accumulate(waited)[:-1]])]
    kept: list[int] = []
    least = float("inf")
    for place, waited_s in zip(order.tolist(), states.waited_s[order].tolist(), strict=True):
        if waited_s < least - slack:
            kept.append(place)
            least = waited_s
    return states.at(np.array(kept))
