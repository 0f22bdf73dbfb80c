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
        add("segments", first, "start_s", amount=amount), add("segments", first, "end_s", amount=amount)
    )


def swapped(document: dict[str, Any]) -> dict[str, Any]:
    """Exchange the priorities of the first two segments."""
    one, other = (document["segments"][at]["priority"] for at in (0, 1))
    return both(put("segments", 0, "priority", value=other), put("segments", 1, "priority", value=one))(
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
    nothing = dict.fromkeys(document["bound"], 0)
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


def empty_certificate(document: dict[str, Any]) -> dict[str, Any]:
    """Let no group prove the ideal."""
    ideal = document["predicted"]["ideal_iteration_s"]
    proof = {
        "groups": [],
        "min_ready_s": ideal,
        "total_allreduce_s": 0.0,
        "min_tail_s": 0.0,
        "bound_s": ideal,
    }
    return document | {"certificate": proof}


def ideal_too_low(document: dict[str, Any]) -> dict[str, Any]:
    """State an ideal that one group alone seems to prove."""
    group = document["groups"][0]
    proof = {
        "groups": [0],
        "min_ready_s": group["ready_s"],
        "total_allreduce_s": group["allreduce_s"],
        "min_tail_s": group["tail_s"],
        "bound_s": group["ready_s"] + group["allreduce_s"] + group["tail_s"],
    }
    ideal = max(proof["bound_s"], document["predicted"]["compute_s"])
    assert ideal < document["predicted"]["ideal_iteration_s"]
    return document | {
        "certificate": proof,
        "predicted": document["predicted"] | {"ideal_iteration_s": ideal},
    }


def twice(document: dict[str, Any]) -> dict[str, Any]:
    """Put a gradient into a second group as well, bytes and segments included."""
    again = document["groups"][0]
    segment = document["segments"][-1]
    extra = segment | {
        "group": len(document["groups"]),
        "offset_bytes": 0,
        "size_bytes": again["size_bytes"],
        "priority": segment["priority"] + 1000,
        "start_s": segment["end_s"],
        "end_s": segment["end_s"] + again["allreduce_s"],
    }
    return document | {
        "groups": [*document["groups"], again],
        "segments": [*document["segments"], extra],
    }


def missing(document: dict[str, Any]) -> dict[str, Any]:
    """Leave a group and its segments out, and number the others anew."""
    gone = 0
    return document | {
        "groups": document["groups"][1:],
        "segments": [
            segment | {"group": segment["group"] - 1}
            for segment in document["segments"]
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
    "another target": lambda document: (
        document | {"target": "ddp" if document["target"] == "pace" else "pace"}
    ),
    "a segment starts before its group is ready": shift(0, -0.25),
    "two segments at once": shift(1, -0.0625),
    "a segment takes too long": add("segments", -1, "end_s", amount=0.0625),
    "a segment takes too little": add("segments", -1, "end_s", amount=-0.0625),
    "the last segment ends later than predicted": shift(-1, 0.25),
    "priorities in another order": swapped,
    "equal priorities": lambda document: put(
        "segments", 1, "priority", value=document["segments"][0]["priority"]
    )(document),
    "segments listed twice": lambda document: (
        document | {"segments": [*document["segments"], document["segments"][-1]]}
    ),
    "a segment left out": without("segments", 0),
    "a byte sent by nobody": add("segments", 0, "size_bytes", amount=-2),
    "a byte sent twice": add("segments", 0, "size_bytes", amount=2),
    "an offset moved": add("segments", -1, "offset_bytes", amount=2),
    "an element cut": both(add("segments", 0, "size_bytes", amount=-1)),
    "a segment of no group": put("segments", 0, "group", value=99),
    "a segment of no bytes": put("segments", 0, "size_bytes", value=0),
    "segments larger than stated": put("execution", "max_segment_bytes", value=1),
    "nothing may be in flight": put("execution", "credit_bytes", value=0),
    "a group too large": add("groups", 0, "size_bytes", amount=2),
    "ready too early": add("groups", 0, "ready_s", amount=-0.5),
    "ready too late": add("groups", 0, "ready_s", amount=0.001),
    "a tail too short": add("groups", 0, "tail_s", amount=-0.5),
    "a tail too long": add("groups", -1, "tail_s", amount=0.001),
    "an all-reduce too short": add("groups", 0, "allreduce_s", amount=-0.125),
    "an all-reduce too long": add("groups", 0, "allreduce_s", amount=0.001),
    "an unknown gradient": put("groups", 0, "gradients", value=["nobody's"]),
    "a gradient left out": missing,
    "a gradient in two groups": twice,
    "a gradient twice in a group": lambda document: put(
        "groups", 0, "gradients", value=document["groups"][0]["gradients"] * 2
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
    "a certificate of other groups": put("certificate", "groups", value=[0]),
    "a certificate of no group": put("certificate", "groups", value=[99]),
    "a certificate of one group twice": lambda document: put(
        "certificate", "groups", value=document["certificate"]["groups"] * 2
    )(document),
    "an empty certificate": empty_certificate,
    "a certificate ready later": add("certificate", "min_ready_s", amount=0.25),
    "a certificate with more to send": add("certificate", "total_allreduce_s", amount=0.25),
    "a certificate with longer tails": add("certificate", "min_tail_s", amount=0.25),
    "a certificate that does not add up": add("certificate", "bound_s", amount=0.25),
    "a bound that does not add up": add("bound", "bound_s", amount=0.25),
    "a bound of more gradients than qualify": put("bound", "num_gradients", value=99),
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
    "slots in continuous time": put("segments", 0, "start_slot", value=3),
    "an ideal below the strongest set": ideal_too_low,
    "a slot length that was not used": put("solver", "slot_s", value=0.25),
}

IN_SLOTS: dict[str, Change] = {
    "no slot length": put("solver", "slot_s", value=None),
    "another slot length": put("solver", "slot_s", value=0.5),
    "no start slot": put("segments", 0, "start_slot", value=None),
    "no number of slots": put("segments", 0, "num_slots", value=None),
    "a slot too early": both(
        put("segments", 0, "start_slot", value=0), put("segments", 0, "priority", value=0)
    ),
    "slots too few": add("segments", 0, "num_slots", amount=-1),
    "slots too many": add("segments", -1, "num_slots", amount=1),
    "slots that end too late": both(
        add("segments", -1, "start_slot", amount=40), add("segments", -1, "priority", amount=40)
    ),
    "a shared slot": both(
        add("segments", 1, "start_slot", amount=-1), add("segments", 1, "priority", amount=-1)
    ),
    "a priority that is no slot": add("segments", -1, "priority", amount=1),
}
