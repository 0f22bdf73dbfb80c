"""The table of policies by name, with the exchanges that each one simulates; packs add theirs."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import chain
from typing import Any, Literal, overload

from pydantic import ValidationError

from pace.documents.base import explain
from pace.documents.schedule import Exchange
from pace.errors import InvalidOptions
from pace.packs import parts
from pace.simulation.graph.policies import AsTraced, Blocks, Fsdp2, GraphPolicy, Inductor, Planned, ZeroThree
from pace.simulation.horovod import Horovod
from pace.simulation.policies import Ddp, Fifo, MgWfbp, Partitioned, TicTac
from pace.simulation.scheduled import Scheduled
from pace.simulation.sharded import Dear, Sharded, ZeroOne, ZeroRedundancy
from pace.simulation.traffic import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """What a name stands for under an exchange.

    Attributes
    ----------
    kind
        The class of the policy; its fields are the knobs.
    rule
        How it sends gradients, in a phrase.
    exchange
        "allreduce" and "sharded" are simulated on one network, "graph" on the wires of a graph, that of a
        pack on links of its own.
    fixed
        Values of knobs that the name decides.
    preset
        Values that knobs have under this name unless they are given.
    hidden
        Knobs that make no sense under this name.
    """

    kind: Callable[..., Any]
    rule: str
    exchange: Exchange = "allreduce"
    fixed: dict[str, Any] = field(default_factory=dict)
    preset: dict[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    @property
    def knobs(self) -> tuple[str, ...]:
        """Names of the knobs that may be set."""
        names = (each.name for each in fields(self.kind))  # type: ignore[arg-type]  # a dataclass
        return tuple(name for name in names if name not in self.fixed and name not in self.hidden)

    @property
    def defaults(self) -> dict[str, Any]:
        """Values of the knobs that may be set, unless they are given."""
        values = {each.name: each.default for each in fields(self.kind)}  # type: ignore[arg-type]  # a dataclass
        return {name: self.preset.get(name, values[name]) for name in self.knobs}


_SCHEDULED = frozenset({"fusion", "framework"})

REGISTRY: dict[str, tuple[PolicyEntry, ...]] = {
    "fifo": (
        PolicyEntry(kind=Fifo, rule="WFBP: one all-reduce for each gradient, in the order of readiness"),
    ),
    "horovod": (PolicyEntry(kind=Horovod, rule="Horovod 0.28.1: fuses what is ready in each cycle"),),
    "ddp": (PolicyEntry(kind=Ddp, rule="PyTorch DDP 2.13: buckets in the order of readiness"),),
    "mg-wfbp": (PolicyEntry(kind=MgWfbp, rule="Merges gradients if a start-up costs more than waiting"),),
    "tio": (
        PolicyEntry(
            kind=TicTac,
            rule="Whole gradients in TicTac's order, from the graph alone",
            fixed={"order": "tio"},
        ),
    ),
    "tao": (
        PolicyEntry(
            kind=TicTac, rule="Whole gradients in TicTac's order, from measured times", fixed={"order": "tao"}
        ),
    ),
    "p3": (
        # Slices of 50,000 parameters, stop and wait: the next goes out when the last has been confirmed.
        PolicyEntry(
            kind=Partitioned,
            rule="Slices of 200 kB by layer, stop and wait",
            preset={"partition_bytes": 200_000, "credit_bytes": 0, "admission": "paper"},
        ),
    ),
    "bytescheduler": (PolicyEntry(kind=Partitioned, rule="Parts by layer, with a credit"),),
    "dear": (
        PolicyEntry(
            kind=Dear, rule="Reduce-scatter in backward, all-gather before forward", exchange="sharded"
        ),
    ),
    "ddp-best": (
        PolicyEntry(
            kind=Scheduled,
            rule="DDP with the best bucket list (`pace optimize --for ddp`)",
            fixed={"framework": "ddp"},
            hidden=frozenset({"fusion", "preemption"}),
        ),
    ),
    "zero-1": (
        PolicyEntry(
            kind=ZeroOne,
            rule="Megatron-LM: reduce-scatter in backward, all-gathers in forward order; 0: buckets of "
            "max(40e6, 1e6 x ranks)",
            exchange="sharded",
        ),
    ),
    "zero-redundancy": (
        PolicyEntry(
            kind=ZeroRedundancy,
            rule="PyTorch: DDP, then each rank broadcasts the parameters that it updated",
            exchange="sharded",
        ),
    ),
    "paper": (
        PolicyEntry(
            kind=Scheduled,
            rule="The PACE paper's fusion, in segments",
            fixed={"fusion": "paper"},
            hidden=_SCHEDULED,
        ),
    ),
    "pace": (
        PolicyEntry(kind=Scheduled, rule="PACE's schedule", hidden=_SCHEDULED),
        PolicyEntry(kind=Planned, rule="PACE's planner", exchange="graph"),
    ),
    "sharded": (PolicyEntry(kind=Sharded, rule="PACE's sharded schedule", exchange="sharded"),),
    "as-traced": (PolicyEntry(kind=AsTraced, rule="The program's own order", exchange="graph"),),
    "fsdp2": (
        PolicyEntry(
            kind=Fsdp2,
            rule="FSDP2 of torch 2.13: a call for each unit, gathered one unit ahead, one reduce-scatter at "
            "a time",
            exchange="graph",
        ),
    ),
    "inductor": (
        PolicyEntry(
            kind=Inductor, rule="`schedule_overlap_bucketing` of torch 2.13, re-enacted", exchange="graph"
        ),
    ),
    "zero-3": (
        PolicyEntry(
            kind=ZeroThree, rule="DeepSpeed ZeRO-3's trace prefetch; sizes in elements", exchange="graph"
        ),
    ),
    "blocks": (
        PolicyEntry(
            kind=Blocks,
            rule="`manual_overlap_bucketing` of torch: a bucket for each transformer block, one ahead",
            exchange="graph",
        ),
    ),
}

# What the policies of an exchange are simulated on.
_PROFILE = "a profile without parameter servers, from `pace import`, `pace model` or a training job"
_NEEDED: dict[Exchange, str] = {
    "allreduce": _PROFILE,
    "sharded": _PROFILE,
    "graph": "a graph file, from `pace import node-list` or `CollectivePlanner`",
    "servers": "parameter servers, as in `pace simulate --servers 2` or `pace what-if --servers 2`",
}
_ON_ONE_NETWORK: tuple[Exchange, ...] = ("allreduce", "sharded")


@cache
def entries() -> tuple[tuple[str, PolicyEntry], ...]:
    """Return all policies and their names, also those of packs."""
    core = ((name, entry) for name, some in REGISTRY.items() for entry in some)
    return (*core, *chain.from_iterable(parts("policies")))


def policies_for(exchange: Exchange | None) -> tuple[str, ...]:
    """Return the names of the policies of an exchange; None: of all that have one network in common."""
    among = _ON_ONE_NETWORK if exchange is None else (exchange,)
    return tuple(dict.fromkeys(name for name, entry in entries() if entry.exchange in among))


POLICIES = tuple(
    name for name, some in REGISTRY.items() if any(each.exchange in _ON_ONE_NETWORK for each in some)
)
GRAPH_POLICIES = tuple(
    name for name, some in REGISTRY.items() if any(each.exchange == "graph" for each in some)
)


def entry_of(name: str, exchange: Exchange | None = None) -> PolicyEntry:
    """Return what a name stands for on one network, or for an exchange with links of its own there.

    Raises
    ------
    InvalidOptions
        If there is no such policy there.
    """
    apart = None if exchange in _ON_ONE_NETWORK else exchange
    found = [entry for other, entry in entries() if other == name]
    for entry in found:
        if apart == (None if entry.exchange in _ON_ONE_NETWORK else entry.exchange):
            return entry
    others = ", ".join(policies_for(apart))
    if found:
        needed = _NEEDED[found[0].exchange]
        raise InvalidOptions(f'policy "{name}" needs {needed}. Otherwise choose one of {others}')
    where = "" if apart is None else f' of exchange "{apart}"'
    raise InvalidOptions(f'no policy "{name}"{where}: choose one of {others}')


def knobs_of(name: str, exchange: Exchange | None = None) -> tuple[str, ...]:
    """Return the names of a policy's knobs; raises InvalidOptions for an unknown policy."""
    return entry_of(name, exchange).knobs


@overload
def make_policy(name: str, exchange: Literal["servers"], /, **knobs: Any) -> Any: ...  # of a pack


@overload
def make_policy(name: str, exchange: Literal["graph"], /, **knobs: Any) -> GraphPolicy: ...


@overload
def make_policy(
    name: str, exchange: Literal["allreduce", "sharded"] | None = None, /, **knobs: Any
) -> Policy: ...


def make_policy(name: str, exchange: Exchange | None = None, /, **knobs: Any) -> Any:
    """Return a policy by name, on one network or where its exchange is, with some of its knobs set.

    Raises
    ------
    InvalidOptions
        If the policy or a knob is unknown (the message lists the known ones) or a knob's value is wrong.
    """
    entry = entry_of(name, exchange)
    for knob in knobs:
        if knob not in entry.knobs:
            known = ", ".join(entry.knobs) or "none"
            raise InvalidOptions(f'policy "{name}" has no knob "{knob}": it has {known}')
    try:
        return entry.kind(**(entry.preset | knobs | entry.fixed))
    except ValidationError as error:
        raise InvalidOptions(f'knob of policy "{name}": {explain(error)}') from None
