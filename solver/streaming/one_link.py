"""When to send fixed fragments over one link, in a given order: a dynamic program, exact for one link.

Notation as in ``pace.solver.streaming``.

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

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray

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
class _State:
    run_s: float
    waited_s: float
    send: int
    due: int
    before: "_State | None"


def send_in_order(transfer_s: FloatArray, step_lengths_s: FloatArray, most_delay: int) -> OneLinkTimes:
    """Return the best times of fragments in this order.

    Parameters
    ----------
    transfer_s : array of shape (num_fragments,)
    step_lengths_s : array of shape (period_steps,)
    most_delay : int
    """
    bounds = np.concatenate([[0.0], np.cumsum(step_lengths_s)]).tolist()
    steps, compute = len(step_lengths_s), bounds[-1]
    slack = PRECISION * (compute + float(np.sum(transfer_s)))
    states = [_State(0.0, 0.0, 0, 0, None)]
    exact = True
    for taken in transfer_s.tolist():
        made: list[_State] = []
        for state in states:
            for begin in _begins(state, bounds, slack):
                send = min(bisect_right(bounds, begin + slack) - 1, steps)
                end = begin + taken
                last = min(send + most_delay, steps)
                # Applied at each boundary up to the first one after its end: before that, workers wait.
                until = bisect_left(bounds, end - slack)
                for due in range(send, min(last, until) + 1):
                    over = max(end - bounds[due], 0.0)
                    if due == steps:
                        made.append(_State(end, state.waited_s, send, due, state))
                    else:
                        made.append(_State(end - over, state.waited_s + over, send, due, state))
        states = _undominated(made, slack)
        if len(states) > MOST_STATES:
            exact = False
            states = [states[round(place)] for place in np.linspace(0, len(states) - 1, MOST_STATES)]
    best = min(states, key=lambda state: max(compute, state.run_s) + state.waited_s)
    period = max(compute, best.run_s) + best.waited_s
    sends: list[int] = []
    delays: list[int] = []
    at: _State = best
    while at.before is not None:
        sends.append(at.send)
        delays.append(at.due - at.send)
        at = at.before
    sends, delays = sends[::-1], delays[::-1]
    late = next((place for place, send in enumerate(sends) if send == steps), len(sends))
    return OneLinkTimes(
        send_steps=[send % steps for send in sends],
        delays=delays,
        sequence=[*range(late, len(sends)), *range(late)],
        period_s=period,
        exact=exact,
    )


def _begins(state: _State, bounds: list[float], slack: float) -> list[float]:
    following = bisect_right(bounds, state.run_s + slack)
    later = bounds[following : following + 1]
    return [state.run_s, *later]


def _undominated(states: list[_State], slack: float) -> list[_State]:
    states.sort(key=lambda state: (state.run_s, state.waited_s))
    kept: list[_State] = []
    least = float("inf")
    for state in states:
        if state.waited_s < least - slack:
            kept.append(state)
            least = state.waited_s
    return kept
