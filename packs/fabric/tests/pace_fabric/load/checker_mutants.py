"""Mutants of transfer plans, which the checker must refuse; see ``tests.load.checker_mutants``.

.venv/bin/python -m tests.pace_fabric.load.checker_mutants [--mutants N] [--seed S] [--json OUT]
"""

import copy
import random
import sys
from typing import Any

from pace.errors import InvalidOptions
from pace_fabric.checker.transfers import check_transfers
from pace_fabric.documents.transfer_plan import TransferOptions, TransferPlan
from pace_fabric.errors import InvalidFabric
from pace_fabric.plan import plan_transfers
from tests.load.checker_mutants import Case, Forgery, MakeCase, main
from tests.pace_fabric.batches import batch_of, network_of


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


def fabric_case(random_: random.Random) -> Case:
    """Return the plan of a drawn batch, its judge, and its forgeries."""
    names = [f"h{number}" for number in range(random_.randint(2, 5))]
    network = network_of(
        {name: random_.choice([20, 50, 100]) for name in names},
        replica_down=random_.choice([None, 50]),
        aggregators=names[:1] if random_.random() < 0.5 else [],
    )
    updates = {
        f"u{number}": (float(random_.randint(20, 200)), name, random_.choice([100, 99, 97, 92]))
        for number, name in enumerate(names)
    }
    more = {"divergence": {"kind": "norm", "max": 6.0}} if network.replica is not None else {}
    batch = batch_of(updates, bound=random_.choice([10, 30]), momentum=0.5, **more)
    plan = plan_transfers(network, batch, TransferOptions(order=random_.choice(["greedy", "search"])))

    def accepts(document: str) -> bool:
        try:
            return check_transfers(network, batch, TransferPlan.model_validate_json(document)) == []
        except (InvalidFabric, InvalidOptions, ValueError):
            return False

    return plan.to_json().decode(), accepts, FABRIC_FORGERIES


CASES: dict[str, MakeCase] = {"fabric": fabric_case}

if __name__ == "__main__":
    sys.exit(main(CASES))
