"""Ways in which a schedule's document can be wrong: for tests of whatever must refuse it."""

from collections.abc import Callable
from typing import Any

from tests.strategies import changed

Change = Callable[[dict[str, Any]], dict[str, Any]]


def put(*path: str | int, value: Any) -> Change:
    """Return a change that puts `value` at `path`."""
    return lambda document: changed(document, path, value)


def add(*path: str | int, amount: float) -> Change:
    """Return a change that adds `amount` to the number at `path`."""

    def apply(document: dict[str, Any]) -> dict[str, Any]:
        current: Any = document
        for part in path:
            current = current[part]
        return changed(document, path, current + amount)

    return apply


def both(*changes: Change) -> Change:
    """Return one change after another."""

    def apply(document: dict[str, Any]) -> dict[str, Any]:
        for change in changes:
            document = change(document)
        return document

    return apply


def shift(first: int, amount: float) -> Change:
    """Return a change that moves the segment `first` in time."""
    return both(
        add("transfers", first, "start_s", amount=amount), add("transfers", first, "end_s", amount=amount)
    )


def swapped(document: dict[str, Any]) -> dict[str, Any]:
    """Exchange the priorities of the first two segments."""
    one, other = (document["transfers"][at]["priority"] for at in (0, 1))
    return both(put("transfers", 0, "priority", value=other), put("transfers", 1, "priority", value=one))(
        document
    )


def without(*path: str | int) -> Change:
    """Return a change that removes an element of a list."""

    def apply(document: dict[str, Any]) -> dict[str, Any]:
        *outer, at = path
        current: Any = document
        for part in outer:
            current = current[part]
        assert isinstance(at, int)
        return changed(document, outer, [*current[:at], *current[at + 1 :]])

    return apply


def faster(document: dict[str, Any]) -> dict[str, Any]:
    """Claim a window that is 0.25 s shorter, gap included."""
    predicted = document["predicted"]
    iteration = predicted["iteration_s"] - 0.25
    claimed = predicted | {"iteration_s": iteration, "gap": iteration / predicted["lower_bound_s"] - 1}
    return document | {"predicted": claimed}


def proved(document: dict[str, Any], field: str, amount: float) -> dict[str, Any]:
    """Raise one part of the bound, and all that follows from it, until it proves 1 s more than it does."""
    bound = document["bound"] | {field: document["bound"][field] + amount}
    total = bound["min_ready_s"] + bound["min_tail_s"] + bound["latency_s"]
    return with_bound(document, bound | {"bound_s": total + bound["total_bytes"] * bound["seconds_per_byte"]})


def with_bound(document: dict[str, Any], bound: dict[str, Any]) -> dict[str, Any]:
    """Put in a bound and what the predictions take from it."""
    assert bound["bound_s"] > document["bound"]["bound_s"]
    lower = max(bound["bound_s"], document["chain_bound"]["bound_s"], document["predicted"]["compute_s"])
    gap = document["predicted"]["iteration_s"] / lower - 1
    return document | {
        "bound": bound,
        "predicted": document["predicted"] | {"lower_bound_s": lower, "gap": gap},
    }


def bound_of_nothing(document: dict[str, Any]) -> dict[str, Any]:
    """Let no gradient prove that nothing is faster."""
    iteration = document["predicted"]["iteration_s"] + 1
    nothing = dict.fromkeys(document["bound"], 0) | {"link": "network"}
    return with_bound(document, nothing | {"min_ready_s": iteration, "bound_s": iteration})


def bound_above_the_cost(document: dict[str, Any]) -> dict[str, Any]:
    """Price the bound's bytes with a line above what an all-reduce costs."""
    return proved(document, "seconds_per_byte", 1 / document["bound"]["total_bytes"])


def bound_with_more_latency(document: dict[str, Any]) -> dict[str, Any]:
    """Charge more than one latency."""
    return proved(document, "latency_s", 1.0)


def bound_with_later_bytes(document: dict[str, Any]) -> dict[str, Any]:
    """Count bytes that are ready before the bound says."""
    return proved(document, "min_ready_s", 1.0)


def bound_with_longer_tail(document: dict[str, Any]) -> dict[str, Any]:
    """Count bytes that are needed later than the bound says."""
    return proved(document, "min_tail_s", 1.0)


def bound_with_more_bytes(document: dict[str, Any]) -> dict[str, Any]:
    """Count more bytes than there are, and the time that they take."""
    return proved(document, "total_bytes", 8)


def chain_bound_too_high(document: dict[str, Any]) -> dict[str, Any]:
    """Claim by the chain that nothing is faster than 1 % more than what is."""
    iteration = document["predicted"]["iteration_s"] * 1.01
    chain_bound = document["chain_bound"] | {"bound_s": iteration}
    gap = document["predicted"]["iteration_s"] / iteration - 1
    predicted = document["predicted"] | {"lower_bound_s": iteration, "gap": gap}
    return document | {"chain_bound": chain_bound, "predicted": predicted}


def chain_bound_above_the_cost(document: dict[str, Any]) -> dict[str, Any]:
    """Price the chain with a line above what an all-reduce costs, so that its bound would hold."""
    chain_bound = document["chain_bound"] | {"seconds_per_byte": 1.0}
    return document | {"chain_bound": chain_bound}


def empty_proof(document: dict[str, Any]) -> dict[str, Any]:
    """Let no group prove the ideal."""
    ideal = document["predicted"]["ideal_iteration_s"]
    proof = {
        "set": [],
        "min_ready_s": ideal,
        "total_s": 0.0,
        "min_tail_s": 0.0,
        "bound_s": ideal,
    }
    return document | {"proofs": [proof]}


def ideal_too_low(document: dict[str, Any]) -> dict[str, Any]:
    """State an ideal that one group alone seems to prove."""
    group = document["groups"][0]
    proof = {
        "set": [0],
        "min_ready_s": group["ready_s"],
        "total_s": group["transfer_s"],
        "min_tail_s": group["tail_s"],
        "bound_s": group["ready_s"] + group["transfer_s"] + group["tail_s"],
    }
    ideal = max(proof["bound_s"], document["predicted"]["compute_s"])
    assert ideal < document["predicted"]["ideal_iteration_s"]
    return document | {
        "proofs": [proof],
        "predicted": document["predicted"] | {"ideal_iteration_s": ideal},
    }


def twice(document: dict[str, Any]) -> dict[str, Any]:
    """Put a gradient into a second group as well, bytes and segments included."""
    again = document["groups"][0]
    segment = document["transfers"][-1]
    extra = segment | {
        "group": len(document["groups"]),
        "offset_bytes": 0,
        "size_bytes": again["size_bytes"],
        "priority": segment["priority"] + 1000,
        "start_s": segment["end_s"],
        "end_s": segment["end_s"] + again["transfer_s"],
    }
    return document | {
        "groups": [*document["groups"], again],
        "transfers": [*document["transfers"], extra],
    }


def missing(document: dict[str, Any]) -> dict[str, Any]:
    """Leave a group and its segments out, and number the others anew."""
    gone = 0
    return document | {
        "groups": document["groups"][1:],
        "transfers": [
            segment | {"group": segment["group"] - 1}
            for segment in document["transfers"]
            if segment["group"] != gone
        ],
    }


def mixed(document: dict[str, Any]) -> dict[str, Any]:
    """Call a group of int8 one of float16."""
    at = next(i for i, group in enumerate(document["groups"]) if group["dtype"] == "int8")
    return put("groups", at, "dtype", value="float16")(document)


CORRUPTIONS: dict[str, Change] = {
    "another profile": put("profile_sha256", value="0" * 64),
    "another model": put("fingerprint", value="0" * 64),
    "another framework": lambda document: (
        document | {"framework": None if document.get("framework") else "ddp"}
    ),
    "a segment starts before its group is ready": shift(0, -0.25),
    "two segments at once": shift(1, -0.0625),
    "a segment takes too long": add("transfers", -1, "end_s", amount=0.0625),
    "a segment takes too little": add("transfers", -1, "end_s", amount=-0.0625),
    "the last segment ends later than predicted": shift(-1, 0.25),
    "priorities in another order": swapped,
    "equal priorities": lambda document: put(
        "transfers", 1, "priority", value=document["transfers"][0]["priority"]
    )(document),
    "segments listed twice": lambda document: (
        document | {"transfers": [*document["transfers"], document["transfers"][-1]]}
    ),
    "a segment left out": without("transfers", 0),
    "a byte sent by nobody": add("transfers", 0, "size_bytes", amount=-2),
    "a byte sent twice": add("transfers", 0, "size_bytes", amount=2),
    "an offset moved": add("transfers", -1, "offset_bytes", amount=2),
    "an element cut": both(add("transfers", 0, "size_bytes", amount=-1)),
    "a segment of no group": put("transfers", 0, "group", value=99),
    "a segment of no bytes": put("transfers", 0, "size_bytes", value=0),
    "segments larger than stated": put("execution", "max_segment_bytes", value=1),
    "segments smaller than stated": add("execution", "max_segment_bytes", amount=2),
    "nothing may be in flight": put("execution", "max_in_flight", value=0),
    "two in flight": put("execution", "max_in_flight", value=2),
    "a group too large": add("groups", 0, "size_bytes", amount=2),
    "ready too early": add("groups", 0, "ready_s", amount=-0.5),
    "ready too late": add("groups", 0, "ready_s", amount=0.001),
    "a tail too short": add("groups", 0, "tail_s", amount=-0.5),
    "a tail too long": add("groups", -1, "tail_s", amount=0.001),
    "an all-reduce too short": add("groups", 0, "transfer_s", amount=-0.125),
    "an all-reduce too long": add("groups", 0, "transfer_s", amount=0.001),
    "an unknown gradient": put("groups", 0, "tensors", value=["nobody's"]),
    "a gradient left out": missing,
    "a gradient in two groups": twice,
    "a gradient twice in a group": lambda document: put(
        "groups", 0, "gradients", value=document["groups"][0]["tensors"] * 2
    )(document),
    "dtypes mixed": mixed,
    "a faster window": faster,
    "a slower window": add("predicted", "iteration_s", amount=0.25),
    "a lower ideal": add("predicted", "ideal_iteration_s", amount=-0.25),
    "a higher ideal": add("predicted", "ideal_iteration_s", amount=0.25),
    "less compute": add("predicted", "compute_s", amount=-0.25),
    "more compute": add("predicted", "compute_s", amount=0.25),
    "a higher bound": add("predicted", "lower_bound_s", amount=0.25),
    "a lower bound": add("predicted", "lower_bound_s", amount=-0.25),
    "another gap": add("predicted", "gap", amount=-0.01),
    "a proof of other groups": put("proofs", 0, "set", value=[0]),
    "a proof of no group": put("proofs", 0, "set", value=[99]),
    "a proof of one group twice": lambda document: put(
        "proofs", 0, "set", value=document["proofs"][0]["set"] * 2
    )(document),
    "an empty proof": empty_proof,
    "a proof ready later": add("proofs", 0, "min_ready_s", amount=0.25),
    "a proof with more to send": add("proofs", 0, "total_s", amount=0.25),
    "a proof with longer tails": add("proofs", 0, "min_tail_s", amount=0.25),
    "a proof that does not add up": add("proofs", 0, "bound_s", amount=0.25),
    "a bound that does not add up": add("bound", "bound_s", amount=0.25),
    "a bound of more gradients than qualify": put("bound", "num_gradients", value=99),
    "a bound of fewer gradients than its bytes": add("bound", "num_gradients", amount=-1),
    "a bound of more bytes than qualify": bound_with_more_bytes,
    "a bound of no gradient": bound_of_nothing,
    "a bound above the cost": bound_above_the_cost,
    "a bound with two latencies": bound_with_more_latency,
    "a bound of bytes that are ready earlier": bound_with_later_bytes,
    "a bound of bytes that are needed later": bound_with_longer_tail,
    "a chain bound above the optimum": chain_bound_too_high,
    "a chain bound above the cost": chain_bound_above_the_cost,
}

IN_CONTINUOUS_TIME: dict[str, Change] = {
    "slots in continuous time": put("transfers", 0, "start_slot", value=3),
    "an ideal below the strongest set": ideal_too_low,
    "a slot length that was not used": put("solver", "slot_s", value=0.25),
}

IN_SLOTS: dict[str, Change] = {
    "no slot length": put("solver", "slot_s", value=None),
    "another slot length": put("solver", "slot_s", value=0.5),
    "no start slot": put("transfers", 0, "start_slot", value=None),
    "no number of slots": put("transfers", 0, "num_slots", value=None),
    "a slot too early": both(
        put("transfers", 0, "start_slot", value=0), put("transfers", 0, "priority", value=0)
    ),
    "slots too few": add("transfers", 0, "num_slots", amount=-1),
    "slots of no end": put("groups", 0, "transfer_s", value=1e308),
    "slots too many": add("transfers", -1, "num_slots", amount=1),
    "slots that end too late": both(
        add("transfers", -1, "start_slot", amount=40), add("transfers", -1, "priority", amount=40)
    ),
    "a shared slot": both(
        add("transfers", 1, "start_slot", amount=-1), add("transfers", 1, "priority", amount=-1)
    ),
    "a priority that is no slot": add("transfers", -1, "priority", amount=1),
}
