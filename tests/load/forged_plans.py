"""Forged plans: changes at several places of a document that fit one another, by a dishonest planner.

A forgery returns the changed document, or None where the plan has nothing to forge, or would be no worse.
"""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.planning.servers.problem import ServersProblem
from pace.solver.flow_shop.lockstep import send_in_lockstep

Forgery = Callable[[dict[str, Any], random.Random], dict[str, Any] | None]


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


def best_mean(document: dict[str, Any], _: random.Random) -> dict[str, Any] | None:
    """Claim that no plan of transfers has an earlier mean commit."""
    forged, predicted = copy.deepcopy(document), document["predicted"]
    if predicted["gap"] < 1e-3:
        return None
    forged["predicted"] |= {"lower_bound_s": 0.999999 * predicted["mean_commit_s"], "gap": 1e-6}
    return forged


def update_dropped(document: dict[str, Any], random_: random.Random) -> dict[str, Any] | None:
    """Drop an update that can be committed, for any reason, and state what is true of the others."""
    forged = copy.deepcopy(document)
    alone = [t["updates"][0] for t in forged["transfers"] if len(t["updates"]) == 1 and not t["after"]]
    counts = [name for t in forged["transfers"] for name in t["updates"]]
    alone = [name for name in alone if counts.count(name) == 1]
    if not alone or len(forged["order"]) < 2:
        return None
    name = random_.choice(alone)
    before = forged["order"][: forged["order"].index(name)]
    forged["order"].remove(name)
    forged["transfers"] = [t for t in forged["transfers"] if t["updates"] != [name]]
    for number, transfer in enumerate(forged["transfers"]):
        transfer["id"] = number
    forged["commits"] = [c for c in forged["commits"] if c["updates"] != [name]]
    version = forged["commits"][0]["version"] - len(forged["commits"][0]["updates"])
    for commit in forged["commits"]:
        version += len(commit["updates"])
        commit["version"] = version
    reason = random_.choice(["expired", "infeasible", "overtaken", "undeliverable"])
    forged["dropped"].append({"id": name, "reason": reason, "witness": before})
    times = [commit["at_s"] for commit in forged["commits"] for _ in commit["updates"]]
    mean = sum(times) / len(times)
    forged["predicted"] |= {"last_commit_s": times[-1], "mean_commit_s": mean}
    forged["predicted"] |= {"lower_bound_s": 0.0, "gap": 0.0}
    return forged


def all_dropped(document: dict[str, Any], _: random.Random) -> dict[str, Any] | None:
    """Say of every update that it cannot be delivered."""
    if not document["order"]:
        return None
    forged = copy.deepcopy(document)
    drops = [{"id": name, "reason": "undeliverable", "witness": []} for name in forged["order"]]
    forged |= {"order": [], "transfers": [], "commits": [], "dropped": [*forged["dropped"], *drops]}
    forged["replica"] |= {"frozen": [], "punted": [], "bound": 0.0}
    forged["predicted"] |= {"last_commit_s": 0.0, "mean_commit_s": 0.0, "lower_bound_s": 0.0, "gap": 0.0}
    return forged


def reversed_commits(document: dict[str, Any], _: random.Random) -> dict[str, Any] | None:
    """Commit the last arrival first, at the times of the first."""
    commits = document["commits"]
    if len(commits) < 2 or commits[0]["at_s"] > commits[-1]["at_s"] * (1 - 1e-3):
        return None
    forged = copy.deepcopy(document)
    moments = [commit["at_s"] for commit in commits]
    forged["commits"].reverse()
    version = commits[0]["version"] - len(commits[0]["updates"])
    for commit, moment in zip(forged["commits"], moments, strict=True):
        version += len(commit["updates"])
        commit |= {"at_s": moment, "version": version}
    forged["order"] = [name for commit in forged["commits"] for name in commit["updates"]]
    return forged


def another_host(document: dict[str, Any], random_: random.Random) -> dict[str, Any] | None:
    """Send an update from a host that does not have it, or to one that is no server."""
    forged = copy.deepcopy(document)
    transfer = random_.choice(forged["transfers"]) if forged["transfers"] else None
    others = sorted({t["from"] for t in forged["transfers"]} - {transfer["from"]} if transfer else ())
    if transfer is None or not others:
        return None
    transfer[random_.choice(["from", "to"])] = random_.choice(others)
    return None if transfer["from"] == transfer["to"] else forged


def twice_as_fast(document: dict[str, Any], _: random.Random) -> dict[str, Any] | None:
    """Let the transfer that ends last, and its commit, take half of the time at twice the rate."""
    forged = copy.deepcopy(document)
    if not forged["transfers"]:
        return None
    transfer = max(forged["transfers"], key=lambda each: each["end_s"])
    start = float(transfer["start_s"])
    if transfer["end_s"] <= start:
        return None

    def sooner(moment: float) -> float:
        return start + (moment - start) / 2

    transfer["rates"] = [[sooner(a), sooner(b), 2 * rate] for a, b, rate in transfer["rates"]]
    transfer["end_s"] = sooner(transfer["end_s"])
    return forged


FABRIC_FORGERIES: list[Forgery] = [
    best_mean,
    update_dropped,
    all_dropped,
    reversed_commits,
    another_host,
    twice_as_fast,
]
