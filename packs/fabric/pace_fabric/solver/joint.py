"""Order, aggregators and rates of a small batch together: a mixed-integer program on slots, for audit.

What ``ordering`` and ``aggregation`` decide one after the other is decided at once here, as in the joint
program of the MLfabric paper (section 10.1). Binary y[g, d] sends update g to destination d, the server or an
aggregator. x[g, d, t] are the bytes that slot t carries. An aggregator sends its sum from the slot after all
its members have arrived. First the last commit is minimized, then the sum of commit times. All updates are
kept; a deadline limits the commit position.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pulp

from pace.solver.arrays import FloatArray, IntArray
from pace_fabric.solver.capacity import Capacities
from pace_fabric.solver.exact import solve_with_highs
from pace_fabric.solver.updates import Updates

MOST_JOINT = 5
MOST_SLOTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlan:
    """An optimum of the program.

    Attributes
    ----------
    destination
        (n,) the server, or the aggregator that each update goes over.
    commit_s
        (n,) when each is committed: ends of slots.
    """

    destination: IntArray
    commit_s: FloatArray

    @property
    def last_s(self) -> float:
        """When the last update is committed."""
        return float(self.commit_s.max(initial=0.0))

    @property
    def mean_s(self) -> float:
        """Mean time of commit."""
        return float(self.commit_s.mean()) if len(self.commit_s) else 0.0


def solve_jointly(
    updates: Updates, capacities: Capacities, aggregators: Sequence[int], slot_s: float
) -> JointPlan:
    """Solve to optimality with SciPy's HiGHS; transfers start and end with slots of `slot_s` seconds.

    Raises
    ------
    ValueError
        For more than 5 updates, more than 60 slots, links that change, or links without a rate.
    RuntimeError
        If deadlines allow no plan that keeps all updates.
    """
    n = len(updates)
    if n > MOST_JOINT:
        raise ValueError(f"{n} updates: the joint program takes at most {MOST_JOINT}")
    updates.require_hosts(capacities, *aggregators)
    relays = [host for host in dict.fromkeys(aggregators) if host != updates.server]
    links = {2 * updates.server + 1, *(2 * host for host in updates.host.tolist())}
    links |= {2 * host + direction for host in relays for direction in (0, 1)}
    if any(capacities.counts[link] > 1 for link in links):
        raise ValueError("the joint program needs links that do not change")
    if any(capacities.rate_at(link, 0.0) <= 0 for link in links):
        raise ValueError("the joint program needs a rate above 0 on every link")
    if n == 0:
        return JointPlan(destination=np.empty(0, dtype=np.int64), commit_s=np.empty(0))
    num_slots = _slots_directly(updates, capacities, slot_s)
    if num_slots > MOST_SLOTS:
        raise ValueError(
            f"{num_slots} slots of {slot_s:g} s: the joint program takes {MOST_SLOTS}; lengthen the slot"
        )
    last = None
    for _ in range(2):
        program, goes, commits, end = _build(updates, capacities, relays, slot_s, num_slots, last)
        solve_with_highs(program)
        last = round(end.value())
    targets = [updates.server, *relays]
    return JointPlan(
        destination=np.array([targets[int(np.argmax([y.value() for y in row]))] for row in goes]),
        commit_s=np.array([round(commit.value()) for commit in commits]) * slot_s,
    )


def _slots_directly(updates: Updates, capacities: Capacities, slot_s: float) -> int:
    """Return how many slots all updates take directly and one after the other: a plan, so enough."""
    down = capacities.rate_at(2 * updates.server + 1, 0.0)
    slots = [
        int(np.ceil(size / (min(capacities.rate_at(2 * host, 0.0), down) * slot_s) - 1e-9))
        for size, host in zip(updates.size.tolist(), updates.host.tolist(), strict=True)
    ]
    return int(np.ceil(updates.ready.max(initial=0.0) / slot_s - 1e-9)) + sum(max(each, 1) for each in slots)


def _build(
    updates: Updates,
    capacities: Capacities,
    relays: Sequence[int],
    slot_s: float,
    num_slots: int,
    last: int | None,
) -> tuple[pulp.LpProblem, list[list[pulp.LpVariable]], list[pulp.LpVariable], pulp.LpVariable]:
    """Return the program that minimizes the last commit or, that fixed, the sum of commits, and variables."""
    program = pulp.LpProblem("fabric_joint", pulp.LpMinimize)
    both, slots, targets = range(len(updates)), range(num_slots), [updates.server, *relays]
    scale = float(updates.size.max()) or 1.0
    size = (updates.size / scale).tolist()
    host = updates.host.tolist()

    def add(name: str, most: float | None = None, *, binary: bool = False) -> pulp.LpVariable:
        return program.add_variable(name, 0, most, "Binary" if binary else "Continuous")

    goes = [[add(f"y_{g}_{d}", binary=True) for d in targets] for g in both]
    sent = [[[add(f"x_{g}_{d}_{t}") for t in slots] for d in targets] for g in both]
    there = [[add(f"c_{g}_{t}", binary=True) for t in slots] for g in both]
    summed = [[add(f"z_{a}_{t}") for t in slots] for a in relays]
    size_of = [add(f"S_{a}") for a in relays]
    begins = [[add(f"b_{a}_{t}", binary=True) for t in slots] for a in relays]
    ends = [[add(f"e_{a}_{t}", binary=True) for t in slots] for a in relays]
    done = [[add(f"f_{g}_{t}", binary=True) for t in slots] for g in both]
    commits = [add(f"C_{g}", num_slots) for g in both]
    end = add("end", num_slots)
    earlier = {(k, g): add(f"o_{k}_{g}", binary=True) for k, g in permutations(both, 2)}
    if last is None:
        program += end, "last_commit"
    else:
        program += pulp.lpSum(commits), "commit_times"
        program += end <= last
    for g in both:
        program += pulp.lpSum(goes[g]) == 1
        first = int(np.ceil(updates.ready[g] / slot_s - 1e-9))
        arrived = []
        for d, target in enumerate(targets):
            own = target == host[g]  # an aggregator has its own update without a transfer
            program += pulp.lpSum(sent[g][d]) == (0 if own else size[g] * goes[g][d])
            program += pulp.lpSum(sent[g][d][:first]) == 0
            if own:
                arrived.append(size[g] * goes[g][d])
        for t in slots:
            until = pulp.lpSum(sent[g][d][s] for d in range(len(targets)) for s in range(t + 1))
            program += size[g] * there[g][t] <= until + pulp.lpSum(arrived)
            if t < first:
                program += there[g][t] == 0
            program += done[g][t] <= there[g][t]
            for a in range(len(relays)):
                program += done[g][t] <= ends[a][t] + 1 - goes[g][a + 1]
                program += begins[a][t] <= (there[g][t - 1] if t else 0) + 1 - goes[g][a + 1]
        program += commits[g] == num_slots - pulp.lpSum(done[g]) + 1
        for t in slots[1:]:
            program += done[g][t] >= done[g][t - 1]
        program += end >= commits[g]
        program += 1 + pulp.lpSum(earlier[k, g] for k in both if k != g) <= int(
            min(updates.deadline[g], len(updates))
        )
    for (k, g), before in earlier.items():
        if k < g:
            program += before + earlier[g, k] == 1
        program += commits[k] <= commits[g] + num_slots * (1 - before)
        for other in both:
            if other not in (k, g):
                program += earlier[k, other] >= before + earlier[g, other] - 1
    for a in range(len(relays)):
        for g in both:
            program += size_of[a] >= size[g] * goes[g][a + 1]
        program += pulp.lpSum(summed[a]) == size_of[a]
        for t in slots:
            program += summed[a][t] <= begins[a][t]
            program += size_of[a] - pulp.lpSum(summed[a][: t + 1]) <= 1 - ends[a][t]
    for t in slots:
        _within(program, updates, capacities, relays, slot_s / scale, sent, summed, t)
    return program, goes, commits, end


def _within(
    program: pulp.LpProblem,
    updates: Updates,
    capacities: Capacities,
    relays: Sequence[int],
    slot: float,
    sent: list[list[list[pulp.LpVariable]]],
    summed: list[list[pulp.LpVariable]],
    t: int,
) -> None:
    """Keep every link to what it carries in slot t."""
    both = range(len(updates))
    for host in {*updates.host.tolist(), *relays}:
        up = [x[t] for g in both if updates.host[g] == host for x in sent[g]]
        up += [summed[a][t] for a, relay in enumerate(relays) if relay == host]
        program += pulp.lpSum(up) <= capacities.rate_at(2 * host, 0.0) * slot
    into = [sent[g][0][t] for g in both] + [each[t] for each in summed]
    program += pulp.lpSum(into) <= capacities.rate_at(2 * updates.server + 1, 0.0) * slot
    for a, relay in enumerate(relays):
        down = pulp.lpSum(sent[g][a + 1][t] for g in both)
        program += down <= capacities.rate_at(2 * relay + 1, 0.0) * slot
