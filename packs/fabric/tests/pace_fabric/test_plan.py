"""Transfer plans from documents, and the checker that judges them without the solver."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace.errors import InvalidOptions
from pace_fabric import checker
from pace_fabric.checker.transfers import check_transfers
from pace_fabric.documents.batch import UpdateBatch
from pace_fabric.documents.network import FabricNetwork
from pace_fabric.documents.reading import parse_document
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.documents.transfer_plan import LatePolicy, TransferOptions, TransferPlan
from pace_fabric.errors import InvalidFabric
from pace_fabric.plan import plan_transfers
from tests.pace.checker.test_check import imported_from_pace
from tests.pace_fabric.batches import MEGABIT, batch_of, network_of, whole

OPTIONS = [
    TransferOptions(),
    TransferOptions(late="hold"),
    TransferOptions(late="downweight"),
    TransferOptions(late="pace"),
    TransferOptions(order="search"),
    TransferOptions(order="exact"),
    TransferOptions(aggregators=1),
    TransferOptions(aggregators=0),
    TransferOptions(seed=1),
    TransferOptions(check="batch-end"),
]


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: options.model_dump_json(exclude_defaults=True)
)
def test_plans_pass_the_checker(options: TransferOptions) -> None:
    """Every option gives a plan in which the checker finds nothing, and the same one each time."""
    network, batch = whole()
    plan = plan_transfers(network, batch, options)
    assert check_transfers(network, batch, plan) == []
    assert plan.to_json() == plan_transfers(network, batch, options).to_json()
    assert parse_document(TransferPlan, plan.to_json()) == plan
    assert plan.predicted.gap >= 0


@pytest.mark.parametrize(
    ("kind", "fields", "said"),
    [
        (UpdateBatch, {"buffer_bytes": 1}, "buffer_bytes is for a replica"),
        (UpdateBatch, {"merge": "weighted-mean", "sum_size": {"momentum": "exact"}}, "choose one of them"),
        (FabricScenario, {"replicate_patiently": True}, "needs replicate_updates"),
    ],
)
def test_a_field_that_nothing_would_use_is_refused(
    kind: type[UpdateBatch | FabricScenario], fields: dict[str, Any], said: str
) -> None:
    """It names what is missing."""
    document = {"version": 1, "updates": []} if kind is UpdateBatch else {}
    with pytest.raises(InvalidFabric, match=said):
        parse_document(kind, json.dumps(document | fields))


@pytest.mark.parametrize("options", [TransferOptions(aggregators=1), TransferOptions(seed=1)])
def test_the_exact_order_takes_no_aggregators(options: TransferOptions) -> None:
    """It plans direct transfers only, and says so."""
    with pytest.raises(InvalidOptions, match="leave aggregators and seed out"):
        plan_transfers(*whole(), options.model_copy(update={"order": "exact"}))


def test_the_whole_plan_has_everything() -> None:
    """The batch of these tests really drops, adds, replicates and punts."""
    plan = plan_transfers(*whole())
    assert {drop.id: drop.reason for drop in plan.dropped}["u5"] == "expired"
    assert any(len(commit.updates) > 1 for commit in plan.commits)
    assert plan.replica.frozen
    assert plan.replica.bound <= 6.0
    assert any(transfer.target == "r" for transfer in plan.transfers)


E4 = (
    network_of({"a": 100, "b": 100, "c": 100}),
    batch_of({"a": (300, "a", 92), "b": (200, "b", 92), "c": (100, "c", 99)}, bound=10),
)


def test_a_plan_is_judged_by_the_rule_that_it_names() -> None:
    """E4: the paper commits b third though its bound is 2; only a plan of the paper's rule may do that."""
    paper = plan_transfers(*E4, TransferOptions(rule="paper"))
    strict = plan_transfers(*E4)
    assert check_transfers(*E4, paper) == check_transfers(*E4, strict) == []
    (violation,) = check_transfers(*E4, paper.model_copy(update={"rule": "strict"}))
    assert violation == 'update "b" commits at position 3, its bound is 2'
    (violation,) = check_transfers(*E4, strict.model_copy(update={"rule": "paper"}))
    assert violation == 'update "b" commits at position 1, by the paper\'s rule "c" does'


def test_the_paper_rule_has_its_own_drops() -> None:
    """E6: a drop of Algorithm 2 needs the reason and the witness that it gives."""
    network = network_of({"a": 10, "b": 100, "c": 100, "d": 100})
    updates = {"a": (100.0, "a", 91), "b": (100.0, "b", 99), "c": (200.0, "c", 92), "d": (50.0, "d", 99)}
    batch = batch_of(updates, bound=10)
    plan = plan_transfers(network, batch, TransferOptions(rule="paper"))
    assert check_transfers(network, batch, plan) == []
    (drop,) = plan.dropped
    other = drop.model_copy(update={"witness": ("b",)})
    (violation,) = check_transfers(network, batch, plan.model_copy(update={"dropped": (other,)}))
    assert violation.startswith('update "a" is dropped as overtaken b, the paper\'s rule says overtaken')


@pytest.mark.parametrize("late", ["hold", "downweight"])
def test_the_paper_rule_has_no_other_way_to_be_late(late: LatePolicy) -> None:
    """It would be named in the plan and not be followed."""
    with pytest.raises(InvalidOptions, match='rule "paper" drops late updates'):
        plan_transfers(*E4, TransferOptions(rule="paper", late=late))


def drawn(seed: int) -> tuple[FabricNetwork, UpdateBatch]:
    """Return a random network and batch, with a divergence bound that the end of a batch is near to."""
    random_ = random.Random(seed)
    names = [f"h{number}" for number in range(random_.randint(3, 8))]
    network = network_of(
        {name: random_.choice([10, 25, 50, 100]) for name in names},
        replica_down=random_.choice([25, 50, 100]),
        aggregators=[name for name in names if random_.random() < 0.3],
    )
    updates = {
        f"u{number}": (float(random_.randint(10, 400)), random_.choice(names), 100 - random_.randint(0, 10))
        for number in range(len(names))
    }
    limit = {"kind": random_.choice(["norm", "updates"]), "max": random_.choice([1.0, 2.0, 3.0])}
    return network, batch_of(updates, bound=random_.choice([10, 12]), momentum=0.5, divergence=limit)


@pytest.mark.parametrize(
    "options",
    [
        TransferOptions(rule="paper"),
        TransferOptions(check="batch-end"),
        TransferOptions(rule="paper", check="batch-end"),
    ],
    ids=lambda options: options.model_dump_json(exclude_defaults=True),
)
def test_plans_of_the_papers_rules_pass_the_checker(options: TransferOptions) -> None:
    """30 of 30 random batches; by the default rules, some of these plans would be refused."""
    refused = 0
    for seed in range(30):
        network, batch = drawn(seed)
        plan = plan_transfers(network, batch, options)
        assert check_transfers(network, batch, plan) == [], seed
        as_default = plan.model_copy(update={"rule": "strict", "check": "commit"})
        refused += check_transfers(network, batch, as_default) != []
    assert refused


def test_a_check_at_the_batch_end_is_a_check() -> None:
    """A plan that ends with too great a lead is refused, however it says that it was checked."""
    network = network_of({"a": 100, "b": 100, "c": 100}, replica_down=50)
    updates = {name: (100.0, name, 99) for name in "abc"}
    batch = batch_of(updates, divergence={"kind": "updates", "max": 1})
    plan = plan_transfers(network, batch, TransferOptions(check="batch-end"))
    queue = (*plan.replica.frozen, *plan.replica.punted)
    assert plan.replica.frozen
    sent = tuple(transfer for transfer in plan.transfers if transfer.target != network.replica)
    nothing = plan.replica.model_copy(update={"frozen": (), "punted": queue})
    assert len(sent) < len(plan.transfers)
    forged = plan.model_copy(update={"transfers": sent, "replica": nothing})
    assert any("leads by" in violation for violation in check_transfers(network, batch, forged))


def mutated(change: Callable[[dict[str, Any]], None]) -> list[str]:
    """Return what the checker says about the whole plan after a change."""
    network, batch = whole()
    document = json.loads(plan_transfers(network, batch).to_json())
    change(document)
    return check_transfers(network, batch, TransferPlan.model_validate_json(json.dumps(document)))


def faster(plan: dict[str, Any]) -> None:
    """Double one transfer's rates."""
    for rate in plan["transfers"][0]["rates"]:
        rate[2] *= 2


def swapped(plan: dict[str, Any]) -> None:
    """Exchange two commits, the order with them."""
    plan["order"][:2] = plan["order"][1::-1]
    plan["commits"][:2] = plan["commits"][1::-1]


def early(plan: dict[str, Any]) -> None:
    """Commit before the arrival."""
    plan["commits"][-1]["at_s"] /= 2


def twice(plan: dict[str, Any]) -> None:
    """Drop the same update twice."""
    plan["dropped"].append(plan["dropped"][0])


def fitting(plan: dict[str, Any]) -> None:
    """Drop what is kept, as expired."""
    name = plan["order"].pop()
    plan["commits"][-1]["updates"].remove(name)
    plan["commits"][-1]["weights"].pop()
    if not plan["commits"][-1]["updates"]:
        plan["commits"].pop()
    plan["dropped"].append({"id": name, "reason": "expired", "witness": []})


def outrun(plan: dict[str, Any]) -> None:
    """Drop what is kept, as overtaken by too few."""
    fitting(plan)
    plan["dropped"][-1] |= {"reason": "overtaken", "witness": plan["order"][:1]}


def unsent(plan: dict[str, Any]) -> None:
    """Take away a transfer to an aggregator."""
    summed = next(t for t in plan["transfers"] if t["after"])
    summed["after"] = []


def elsewhere(plan: dict[str, Any]) -> None:
    """Send from a host that does not have the update."""
    plan["transfers"][0]["from"] = "h3"


def shrunk(plan: dict[str, Any]) -> None:
    """Claim a smaller size."""
    plan["transfers"][0]["size_bytes"] //= 2


def forgotten(plan: dict[str, Any]) -> None:
    """Punt what the bound needs at the replica."""
    plan["replica"]["punted"] = [*plan["replica"]["frozen"], *plan["replica"]["punted"]]
    plan["replica"]["frozen"] = []
    plan["transfers"] = [t for t in plan["transfers"] if t["to"] != "r"]


def praised(plan: dict[str, Any]) -> None:
    """Claim a bound above what is reached."""
    plan["predicted"]["lower_bound_s"] = plan["predicted"]["mean_commit_s"] * 2


def longer(plan: dict[str, Any]) -> None:
    """Let the last transfer, for which nothing waits, end after its rates."""
    plan["transfers"][-1]["end_s"] *= 1.5


def sooner(plan: dict[str, Any]) -> None:
    """Let a transfer start before its rates."""
    late = next(t for t in plan["transfers"] if t["start_s"] > 0)
    late["start_s"] *= 0.99


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (longer, "its rates do not begin"),
        (sooner, "its rates do not begin"),
        (faster, "carry"),
        (swapped, "before"),
        (early, "before"),
        (twice, "2 times"),
        (fitting, "expired"),
        (outrun, "updates overtake it"),
        (unsent, "is not at"),
        (elsewhere, "is not at"),
        (shrunk, "size_bytes"),
        (forgotten, "leads by"),
        (praised, "below its bound"),
    ],
)
def test_the_checker_refuses_mutated_plans(change: Callable[[dict[str, Any]], None], says: str) -> None:
    """Each corruption is named."""
    assert any(says in violation for violation in mutated(change))


def test_a_plan_for_another_batch() -> None:
    """A plan names its batch."""
    network, batch = whole()
    plan = plan_transfers(network, batch)
    other = batch.model_copy(update={"version": 101})
    assert check_transfers(network, other, plan)[0].startswith("batch_sha256")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_plans_pass_the_checker(data: st.DataObject) -> None:
    """Whatever the network changes to, however old the updates are, with or without replica."""
    hosts = [f"h{i}" for i in range(data.draw(st.integers(1, 5)))]
    rate = st.sampled_from([1.0, 2.5, 10.0])
    with_replica = data.draw(st.booleans())
    names = [*hosts, "s", *(["r"] if with_replica else [])]
    network = FabricNetwork.model_validate(
        {
            "hosts": [
                {
                    "name": name,
                    "up_bytes_per_s": data.draw(rate) * 1e6,
                    "down_bytes_per_s": data.draw(rate) * 1e6,
                    "changes": [{"at_s": 2.0, "up_bytes_per_s": data.draw(rate) * 1e6}],
                }
                for name in names
            ],
            "server": "s",
            "replica": "r" if with_replica else None,
            "aggregators": data.draw(st.lists(st.sampled_from(hosts), unique=True, max_size=3)),
        }
    )
    updates = {
        f"u{i}": (
            data.draw(st.sampled_from([8.0, 16.0])),
            data.draw(st.sampled_from(hosts)),
            100 - data.draw(st.integers(0, 9)),
        )
        for i in range(data.draw(st.integers(0, 7)))
    }
    limit = {"divergence": {"kind": "updates", "max": data.draw(st.integers(0, 4))}} if with_replica else {}
    batch = batch_of(updates, bound=9, momentum=0.9, **limit)
    options = TransferOptions(late=data.draw(st.sampled_from(["drop", "hold", "downweight"])))
    assert check_transfers(network, batch, plan_transfers(network, batch, options)) == []


def test_documents_name_their_faults() -> None:
    """The message names the host or update at fault."""
    with pytest.raises(InvalidFabric, match='server "x" is no host'):
        parse_document(
            FabricNetwork,
            '{"hosts": [{"name": "a", "up_bytes_per_s": 1.0, "down_bytes_per_s": 1.0}], "server": "x"}',
        )
    with pytest.raises(InvalidFabric, match="later than 3"):
        parse_document(
            UpdateBatch,
            '{"version": 3, "updates": [{"id": "u", "host": "a", "size_bytes": 1, "version": 4}]}',
        )
    with pytest.raises(InvalidFabric, match="each of the 1 updates adds 1 to it"):
        parse_document(
            UpdateBatch,
            f'{{"version": {2**53 - 1}, "updates": '
            '[{"id": "u", "host": "a", "size_bytes": 1, "version": 4}]}',
        )
    # The size of a sum of updates is a float on the way, which holds no larger whole numbers.
    with pytest.raises(
        InvalidFabric, match=r"updates: 0: size_bytes: expected a whole number from 0 to 9\.0072e15"
    ):
        parse_document(
            UpdateBatch,
            f'{{"version": 3, "updates": '
            f'[{{"id": "u", "host": "a", "size_bytes": {2**63 - 1}, "version": 3}}]}}',
        )
    network, batch = whole()
    with pytest.raises(InvalidFabric, match='"elsewhere" is no host'):
        plan_transfers(network, batch_of({"u": (1, "elsewhere", 100)}))
    with pytest.raises(InvalidFabric, match="the network has none"):
        plan_transfers(network_of({"h0": 1}), batch)
    crowd = batch_of({f"u{i}": (1.0, "h0", 100) for i in range(8)})
    with pytest.raises(InvalidOptions, match="at most 7"):
        plan_transfers(network, crowd, TransferOptions(order="exact"))


def test_a_searched_plan_keeps_what_the_search_found() -> None:
    """Plans give bandwidth in the order of the list that was found, which is not that of commits.

    Worked by hand: the slow update takes 1 of 10 MB/s for 2 s, the large one the other 9 for 1.111 s.
    """
    network = network_of({"a": 80, "b": 8}, down=80)
    batch = batch_of({"big": (80, "a", 100), "slow": (16, "b", 100)})
    plan = plan_transfers(network, batch, TransferOptions(order="search"))
    assert [commit.updates for commit in plan.commits] == [("big",), ("slow",)]
    assert [commit.at_s for commit in plan.commits] == pytest.approx([10 / 9, 2.0])
    assert check_transfers(network, batch, plan) == []


def test_searched_plans_are_within_one_percent_of_exact_ones() -> None:
    """In the mean of random batches, as plans say it and not only as the search does."""
    random = np.random.default_rng(1)
    over = []
    for _ in range(12):
        number = int(random.integers(2, 5))
        network = network_of({f"h{n}": float(random.choice([8, 20, 40, 80])) for n in range(number)}, down=80)
        batch = batch_of({f"u{n}": (float(random.integers(4, 160)), f"h{n}", 100) for n in range(number)})
        means = []
        for order in ("search", "exact"):
            plan = plan_transfers(network, batch, TransferOptions.model_validate({"order": order}))
            assert check_transfers(network, batch, plan) == []
            means.append(plan.predicted.mean_commit_s)
        over.append(means[0] / means[1] - 1)
    assert np.mean(over) <= 0.01


def two_links() -> tuple[FabricNetwork, UpdateBatch, dict[str, Any]]:
    """Return a fast and a slow worker with 10 MB each, and their plan."""
    network, batch = (
        network_of({"a": 80, "b": 8}, down=80),
        batch_of({n: (80, n, 100) for n in "ab"}),
    )
    return network, batch, json.loads(plan_transfers(network, batch).to_json())


def test_dropping_everything_as_undeliverable_is_refused() -> None:
    """Links that carry something for ever can carry every update."""
    network, batch, plan = two_links()
    plan |= {"order": [], "transfers": [], "commits": []}
    plan["dropped"] = [{"id": n, "reason": "undeliverable", "witness": []} for n in "ab"]
    plan["predicted"] |= {"last_commit_s": 0.0, "mean_commit_s": 0.0, "lower_bound_s": 0.0, "gap": 0.0}
    found = check_transfers(network, batch, TransferPlan.model_validate_json(json.dumps(plan)))
    assert len(found) == 2
    assert all("dropped as undeliverable, and its links can carry it" in violation for violation in found)


def test_a_bound_that_does_not_follow_is_refused() -> None:
    """A plan cannot claim to be the best by raising its bound to what it reaches."""
    network, batch, plan = two_links()
    mean = plan["predicted"]["mean_commit_s"]
    assert plan["predicted"]["gap"] > 0.05
    plan["predicted"] |= {"lower_bound_s": 0.999999 * mean, "gap": 1e-6}
    (found,) = check_transfers(network, batch, TransferPlan.model_validate_json(json.dumps(plan)))
    assert "can be shown" in found


def test_an_update_behind_a_link_that_ends_is_undeliverable() -> None:
    """Where the way up stops before all is sent, the checker agrees that nothing can be done."""
    network = network_of({"a": 80, "b": 80}, down=80)
    document = network.model_dump()
    document["hosts"][1]["changes"] = [{"at_s": 0.5, "up_bytes_per_s": 0.0, "down_bytes_per_s": 0.0}]
    network = FabricNetwork.model_validate(document)
    batch = batch_of({n: (80, n, 100) for n in "ab"})
    plan = plan_transfers(network, batch)
    assert [(drop.id, drop.reason) for drop in plan.dropped] == [("b", "undeliverable")]
    assert check_transfers(network, batch, plan) == []


def test_the_bound_is_for_the_updates_that_are_kept() -> None:
    """E2: greedy drops g1, so its mean and its bound are those of g2 alone: 1 s, and a gap of nothing.

    The search keeps both. Their bound is the mean of 10 s and 1 s at least, as each would take alone.
    """
    network = network_of({"a": 10, "b": 100})
    batch = batch_of({"g1": (100, "a", 91), "g2": (100, "b", 95)}, bound=10)
    greedy = plan_transfers(network, batch)
    assert [(drop.id, drop.reason) for drop in greedy.dropped] == [("g1", "overtaken")]
    assert greedy.predicted.mean_commit_s == pytest.approx(1.0)
    assert greedy.predicted.lower_bound_s == pytest.approx(1.0)
    assert greedy.predicted.gap == pytest.approx(0.0, abs=1e-6)
    searched = plan_transfers(network, batch, TransferOptions(order="search"))
    assert searched.dropped == ()
    assert searched.predicted.mean_commit_s == pytest.approx(10.0)
    assert 5.5 * (1 - 1e-6) <= searched.predicted.lower_bound_s <= 10.0
    assert check_transfers(network, batch, searched) == check_transfers(network, batch, greedy) == []


@pytest.mark.parametrize("other_bytes", [0, 1000])
def test_updates_without_bytes_are_judged(other_bytes: int) -> None:
    """They are at the server when they are ready, even if their link carries nothing."""
    network = network_of({"h0": 0.0, "h1": 100.0})
    updates = [
        {"id": host, "host": host, "size_bytes": size, "version": 1, "ready_s": 1.0}
        for host, size in (("h0", 0), ("h1", other_bytes))
    ]
    batch = UpdateBatch.model_validate({"version": 1, "updates": updates})
    assert check_transfers(network, batch, plan_transfers(network, batch)) == []


def test_times_that_cannot_be_are_refused() -> None:
    """A commit that never comes, and an update without bytes that arrives before it leaves."""
    network = network_of({"h0": 100.0, "h1": 100.0})
    batch = batch_of({"a": (8, "h0", 100), "b": (0, "h1", 100)})
    plan = plan_transfers(network, batch)
    late = plan.predicted.model_copy(update={"last_commit_s": 1e308})
    found = check_transfers(network, batch, plan.model_copy(update={"predicted": late}))
    assert any("last_commit_s is 1e+308" in each for each in found)
    early = tuple(
        each if each.rates else each.model_copy(update={"start_s": 0.01}) for each in plan.transfers
    )
    found = check_transfers(network, batch, plan.model_copy(update={"transfers": early}))
    assert any("end_s 0.0 is before start_s 0.01" in each for each in found)


def test_a_plan_that_keeps_what_no_link_carries_is_refused() -> None:
    """No bound can be derived for it, and the checker says what is wrong."""
    network = network_of({"h0": 0.0, "h1": 100.0})
    batch = batch_of({"a": (8, "h0", 100), "b": (8, "h1", 100)})
    plan = plan_transfers(network, batch)
    both = {"updates": ("b", "a"), "weights": (1.0, 1.0), "version": 102}
    kept = {"dropped": (), "order": ("b", "a"), "commits": (plan.commits[0].model_copy(update=both),)}
    found = check_transfers(network, batch, plan.model_copy(update=kept))
    assert any('"a" never reaches the server' in each for each in found)


def test_the_limit_of_sums_is_not_one_of_single_updates() -> None:
    """Over an aggregator, an update of 100 bytes would not shrink to the 3 bytes that sums have at most."""
    rates = {"s": 10.0, "h1": 100.0, "h2": 100.0}
    hosts = [{"name": name, "up_bytes_per_s": r, "down_bytes_per_s": r} for name, r in rates.items()]
    network = FabricNetwork.model_validate({"hosts": hosts, "server": "s", "aggregators": ["h1"]})
    batch = UpdateBatch.model_validate(
        {
            "version": 1,
            "updates": [{"id": "a", "host": "h2", "size_bytes": 100, "version": 1}],
            "sum_size": {"kind": "sparse", "at_most_bytes": 3},
        }
    )
    plan = plan_transfers(network, batch)
    assert check_transfers(network, batch, plan) == []
    assert plan.predicted.last_commit_s == 10.0


def test_the_checker_imports_nothing_that_solves() -> None:
    """It reads documents alone: an error of the solver's is no error of its judge."""
    ours = imported_from_pace(checker)
    assert any(name.startswith("pace_fabric.documents.") for name in ours)
    assert {name for name in ours if not name.startswith("pace_fabric.documents.")} <= {"pace.errors"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"machines": 10_000, "workers_per_machine": 10_000}, "machines \\* workers_per_machine is 1e\\+08"),
        ({"tick_s": 1e-12}, "duration_s / tick_s is 3e\\+13"),
        ({"links": {"every_s": 1e-12}}, "links.every_s is 1.53e\\+15"),
        ({"links": {"every_s": 1e-6}, "duration_s": 1e-6}, "links.every_s is 1.02e\\+09"),
    ],
)
def test_a_scenario_that_takes_for_ever_is_refused(fields: dict[str, Any], said: str) -> None:
    """In one line, before anything is allocated."""
    with pytest.raises(InvalidFabric, match=said):
        parse_document(FabricScenario, json.dumps(fields))


def test_a_plan_without_an_end_is_refused() -> None:
    """Rates close to 0 would give times that no document holds."""
    network = network_of({"h0": 1e-300})
    with pytest.raises(InvalidFabric, match="raise the rates"):
        plan_transfers(network, batch_of({"u0": (100, "h0", 100)}))


def test_a_check_without_a_replica_is_refused() -> None:
    """It would have no effect."""
    batch = batch_of({"u0": (100, "h0", 100)})
    with pytest.raises(InvalidOptions, match='check "batch-end" is for a replica'):
        plan_transfers(network_of({"h0": 1.0}), batch, TransferOptions(check="batch-end"))


def test_a_sum_needs_the_servers_way_down() -> None:
    """By hand: 100 Mb arrive over 10 Mb/s, however fast the ways up are; a limit on sums needs less."""
    network = network_of({"h0": 100, "h1": 100}, down=100, aggregators=["h1"])
    slow = network.hosts[-1].model_copy(update={"down_bytes_per_s": 10 * MEGABIT})
    network = network.model_copy(update={"hosts": (*network.hosts[:-1], slow)})
    updates = {"u0": (100.0, "h0", 100), "u1": (100.0, "h1", 100)}
    for limit, bound_s in ((None, 10.0), (50 * MEGABIT, 5.0)):
        sums: dict[str, Any] = (
            {} if limit is None else {"sum_size": {"kind": "sparse", "at_most_bytes": limit}}
        )
        batch = batch_of(updates, **sums)
        plan = plan_transfers(network, batch)
        assert plan.predicted.bound == "all"
        assert plan.predicted.lower_bound_s == pytest.approx(bound_s)
        assert check_transfers(network, batch, plan) == []
        praised = plan.predicted.model_copy(
            update={
                "lower_bound_s": bound_s * 1.02,
                "gap": plan.predicted.mean_commit_s / bound_s / 1.02 - 1,
            }
        )
        assert any("can be shown" in each or "below its bound" in each for each in check_transfers(
            network, batch, plan.model_copy(update={"predicted": praised})
        ))  # fmt: skip
