"""Plays an outer plan from its first step on: utilization as it develops, with steps of varying length."""

import random
from dataclasses import dataclass

from pace.documents.base import refuse_other
from pace.errors import InvalidOptions
from pace_sync.documents.outer_plan import OuterPlan
from pace_sync.documents.outer_sync import OuterSync
from pace_sync.errors import InvalidSync

MOST_PERIODS = 1_000_000
# More step times to draw take many minutes.
MOST_DRAWS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterRun:
    """What a simulated run took.

    Attributes
    ----------
    period_s
        Time of each period.
    compute_s
        Compute time of the steps, by period: of the slowest worker in each step.
    wait_s
        Waiting for transfers, by period.
    """

    period_s: list[float]
    compute_s: list[float]
    wait_s: list[float]

    @property
    def utilization(self) -> float:
        """Share of time in which steps run, over all periods."""
        return sum(self.compute_s) / sum(self.period_s)


def simulate_outer(
    problem: OuterSync, plan: OuterPlan, *, periods: int = 20, jitter: float = 0.0, seed: int = 0
) -> OuterRun:
    """Play so many periods of a plan, from idle links on.

    Parameters
    ----------
    jitter
        Standard deviation of a step's time over its mean, for each worker on its own. A step ends with the
        slowest worker that the next all-reduce needs, so all are taken to go on together.

    Raises
    ------
    InvalidOptions
        For numbers that cannot be.
    InvalidSync
        For what is no outer-sync document or plan.
    """
    refuse_other(problem, OuterSync, InvalidSync)
    refuse_other(plan, OuterPlan, InvalidSync)
    if not 1 <= periods <= MOST_PERIODS:
        raise InvalidOptions(f"periods {periods}: give a number from 1 to {MOST_PERIODS:,}")
    if not 0 <= jitter < 1:
        raise InvalidOptions(f"jitter {jitter:g}: give a number from 0 to below 1")
    if jitter and periods * problem.period_steps * problem.workers > MOST_DRAWS:
        raise InvalidOptions(
            f"{periods} periods of {problem.period_steps} steps on {problem.workers} workers vary more than "
            f"{MOST_DRAWS:,} steps: give fewer periods, or no jitter"
        )
    if plan.problem_sha256 != problem.sha256:
        raise InvalidSync("the plan was made for another outer-sync document: plan again")
    chance = random.Random(seed)
    links = {link.name: link for link in problem.links}
    taken = [
        problem.call_s(links[each.link]) + each.size_bytes * problem.seconds_per_byte(links[each.link])
        for each in plan.fragments
    ]
    sent: dict[int, list[int]] = {}
    for number, fragment in enumerate(plan.fragments):
        sent.setdefault(fragment.send_step, []).append(number)
    update_s = problem.busy_step_s - problem.step_s
    free = dict.fromkeys(links, 0.0)
    due: dict[int, list[float]] = {}
    now = 0.0
    run = OuterRun(period_s=[], compute_s=[], wait_s=[])
    for period in range(periods):
        began, computed, waited = now, 0.0, 0.0
        for place in range(1, problem.period_steps + 1):
            step = period * problem.period_steps + place
            longest = problem.step_s
            if jitter:
                longest *= max(max(chance.gauss(1.0, jitter), 0.0) for _ in range(problem.workers))
            now += longest + update_s
            computed += longest
            for number in sent.get(step % problem.period_steps, ()):
                fragment = plan.fragments[number]
                end = free[fragment.link] = max(now, free[fragment.link]) + taken[number]
                due.setdefault(step + fragment.delay_steps, []).append(end)
            until = max(due.pop(step, ()), default=now)
            waited += max(until - now, 0.0)
            now = max(now, until)
        run.period_s.append(now - began)
        run.compute_s.append(computed)
        run.wait_s.append(waited)
    return run
