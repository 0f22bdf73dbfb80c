"""Forged schedules over servers: changes at several places that fit one another, by a dishonest planner."""

import copy
import random
from typing import Any

import numpy as np

from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.solver.flow_shop.lockstep import send_in_lockstep
from pace_servers.planning.problem import ServersProblem
from tests.load.checker_mutants import Forgery


def window_by_priority(profile: Profile, schedule: Schedule) -> float:
    """Return the window if workers in lock step send by the priorities of a schedule over servers."""
    problem = ServersProblem.of(profile, schedule.placement)
    pushes = sorted(schedule.of_op("push"), key=lambda segment: segment.priority)
    groups = [schedule.groups[segment.group] for segment in pushes]
    times = send_in_lockstep(
        problem.links,
        ready=np.array([group.ready_s for group in groups]),
        sizes=np.array([segment.size_bytes for segment in pushes]),
        server=np.array([segment.link // 2 for segment in pushes]),
    )
    tails = np.array([group.tail_s for group in groups])
    return max(schedule.predicted.compute_s, float(np.max(times.pull_ends + tails, initial=0.0)))


def reversed_priorities(profile: Profile) -> Forgery:
    """Return the forgery that sends the last first; None where that takes no longer than stated."""

    def forge(document: dict[str, Any], _: random.Random) -> dict[str, Any] | None:
        forged = copy.deepcopy(document)
        last = max(transfer["priority"] for transfer in forged["transfers"])
        for transfer in forged["transfers"]:
            transfer["priority"] = last - transfer["priority"]
        window = window_by_priority(profile, Schedule.model_validate(forged))
        return forged if window > document["predicted"]["iteration_s"] * (1 + 1e-6) else None

    return forge


def one_byte_a_second(document: dict[str, Any], _: random.Random) -> dict[str, Any]:
    """Pace connections to 1 byte/s, and claim the same times."""
    forged = copy.deepcopy(document)
    forged["execution"]["connection_bytes_per_s"] = 1.0
    return forged


def another_server(document: dict[str, Any], random_: random.Random) -> dict[str, Any] | None:
    """Move a push and its pull to another server, at the same times, at which its link is busy."""
    forged = copy.deepcopy(document)
    push = 2 * random_.randrange(len(forged["transfers"]) // 2)
    num_links = len(forged["links"])
    if num_links < 4:
        return None
    moved = forged["transfers"][push : push + 2]
    for transfer in moved:
        transfer["link"] = (transfer["link"] + 2) % num_links
    clashes = (
        each["link"] == one["link"] and each["start_s"] < one["end_s"] and one["start_s"] < each["end_s"]
        for one in moved
        for each in forged["transfers"]
        if each not in moved
    )
    return forged if any(clashes) else None


def segment_left_out(document: dict[str, Any], random_: random.Random) -> dict[str, Any]:
    """Leave out a push and its pull."""
    forged = copy.deepcopy(document)
    push = 2 * random_.randrange(len(forged["transfers"]) // 2)
    del forged["transfers"][push : push + 2]
    return forged


def best_by_its_bound(document: dict[str, Any], random_: random.Random) -> dict[str, Any] | None:
    """Claim that nothing is faster: raise one part of the bound, and all that follows from it."""
    predicted = document["predicted"]
    if predicted["gap"] < 1e-6:
        return None
    forged = copy.deepcopy(document)
    bound, missing = forged["bound"], predicted["iteration_s"] - document["bound"]["bound_s"]
    field = random_.choice(["min_ready_s", "min_tail_s", "latency_s", "round_trip_s", "total_bytes"])
    bound.setdefault(field, 0.0)  # a round trip that costs nothing is not written down
    bound[field] += missing / bound["seconds_per_byte"] if field == "total_bytes" else missing
    bound["bound_s"] = predicted["iteration_s"]
    forged["predicted"] |= {"lower_bound_s": predicted["iteration_s"], "gap": 0.0}
    return forged


def best_by_its_chain(document: dict[str, Any], _: random.Random) -> dict[str, Any] | None:
    """Claim by the chain's bound that nothing is faster."""
    predicted, forged = document["predicted"], copy.deepcopy(document)
    if predicted["gap"] < 1e-6 or forged["chain_bound"] is None:
        return None
    forged["chain_bound"]["bound_s"] = predicted["iteration_s"]
    forged["predicted"] |= {"lower_bound_s": predicted["iteration_s"], "gap": 0.0}
    return forged


def servers_forgeries(profile: Profile) -> list[Forgery]:
    """Return all forgeries of schedules over servers for a profile."""
    return [
        reversed_priorities(profile),
        one_byte_a_second,
        another_server,
        segment_left_out,
        best_by_its_bound,
        best_by_its_chain,
    ]
