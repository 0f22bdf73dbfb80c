"""The policies by name: one table, which says of each policy which exchange it simulates."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import ValidationError

from pace.documents.base import explain
from pace.documents.schedule import Exchange
from pace.errors import InvalidOptions
from pace.simulation.horovod import Horovod
from pace.simulation.policies import Ddp, Fifo, MgWfbp, Partitioned, TicTac
from pace.simulation.scheduled import Scheduled
from pace.simulation.servers.policies import (
    BytePs,
    FifoExchange,
    PartitionedExchange,
    PlannedExchange,
    TicTacExchange,
)
from pace.simulation.servers.traffic import ExchangePolicy
from pace.simulation.traffic import Policy
from pace.simulation.two_halves import Dear, Sharded, ZeroOne, ZeroRedundancy


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """What a name stands for.

    Attributes
    ----------
    kind
        The class of the policy; its fields are the knobs.
    exchange
        "allreduce" and "sharded" are simulated on one network, "servers" on the links of a cluster.
    fixed
        Values of knobs that the name decides.
    preset
        Values that knobs have under this name unless they are given.
    hidden
        Knobs that make no sense under this name.
    """

    kind: Callable[..., Any]
    exchange: Exchange = "allreduce"
    fixed: dict[str, Any] = field(default_factory=dict)
    preset: dict[str, Any] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()

    @property
    def knobs(self) -> tuple[str, ...]:
        """Names of the knobs that may be set."""
        names = (each.name for each in fields(self.kind))  # type: ignore[arg-type]  # a dataclass
        return tuple(name for name in names if name not in self.fixed and name not in self.hidden)


_SCHEDULED = frozenset({"fusion", "framework"})

REGISTRY: dict[str, PolicyEntry] = {
    "fifo": PolicyEntry(kind=Fifo),
    "horovod": PolicyEntry(kind=Horovod),
    "ddp": PolicyEntry(kind=Ddp),
    "mg-wfbp": PolicyEntry(kind=MgWfbp),
    "tio": PolicyEntry(kind=TicTac, fixed={"order": "tio"}),
    "tao": PolicyEntry(kind=TicTac, fixed={"order": "tao"}),
    # Slices of 50,000 parameters, stop and wait: the next goes out when the last has been confirmed.
    "p3": PolicyEntry(
        kind=Partitioned, preset={"partition_bytes": 200_000, "credit_bytes": 0, "admission": "paper"}
    ),
    "bytescheduler": PolicyEntry(kind=Partitioned),
    "dear": PolicyEntry(kind=Dear, exchange="sharded"),
    "ddp-best": PolicyEntry(
        kind=Scheduled, fixed={"framework": "ddp"}, hidden=frozenset({"fusion", "preemption"})
    ),
    "zero-1": PolicyEntry(kind=ZeroOne, exchange="sharded"),
    "zero-redundancy": PolicyEntry(kind=ZeroRedundancy, exchange="sharded"),
    "pace": PolicyEntry(kind=Scheduled, fixed={"fusion": "paper"}, hidden=_SCHEDULED),
    "optimal": PolicyEntry(kind=Scheduled, hidden=_SCHEDULED),
    "sharded": PolicyEntry(kind=Sharded, exchange="sharded"),
    "ps-fifo": PolicyEntry(kind=FifoExchange, exchange="servers"),
    # Upstream MXNet's slices of 40,000 parameters, the next to a server when the last has been acknowledged.
    "ps-p3": PolicyEntry(
        kind=PartitionedExchange,
        exchange="servers",
        preset={
            "partition_bytes": 160_000,
            "credit_bytes": 0,
            "admission": "paper",
            "credit_of": "connection",
            "acknowledged": True,
        },
    ),
    "ps-bytescheduler": PolicyEntry(kind=PartitionedExchange, exchange="servers"),
    "ps-byteps": PolicyEntry(kind=BytePs, exchange="servers"),
    "ps-tio": PolicyEntry(kind=TicTacExchange, exchange="servers", fixed={"order": "tio"}),
    "ps-tao": PolicyEntry(kind=TicTacExchange, exchange="servers", fixed={"order": "tao"}),
    "ps-pace": PolicyEntry(kind=PlannedExchange, exchange="servers"),
}

POLICIES = tuple(name for name, entry in REGISTRY.items() if entry.exchange != "servers")
SERVER_POLICIES = tuple(name for name, entry in REGISTRY.items() if entry.exchange == "servers")


def entry_of(name: str, among: tuple[str, ...] = POLICIES + SERVER_POLICIES) -> PolicyEntry:
    """Return what a name stands for; raises InvalidOptions if it is not among these policies."""
    if name not in among:
        raise InvalidOptions(f'no policy "{name}": choose one of {", ".join(among)}')
    return REGISTRY[name]


def knobs_of(name: str) -> tuple[str, ...]:
    """Return the names of a policy's knobs; raises InvalidOptions for an unknown policy."""
    return entry_of(name).knobs


def make_policy(name: str, **knobs: Any) -> Policy:
    """Return a policy for one network by name, with some of its knobs set.

    Raises
    ------
    InvalidOptions
        If the policy or a knob is unknown (the message lists the known ones) or a knob's value is wrong.
    """
    made: Policy = _make(name, entry_of(name, POLICIES), knobs)
    return made


def make_server_policy(name: str, **knobs: Any) -> ExchangePolicy:
    """Return a policy for parameter servers by name; raises InvalidOptions as ``make_policy`` does."""
    made: ExchangePolicy = _make(name, entry_of(name, SERVER_POLICIES), knobs)
    return made


def _make(name: str, entry: PolicyEntry, knobs: dict[str, Any]) -> Any:
    for knob in knobs:
        if knob not in entry.knobs:
            known = ", ".join(entry.knobs) or "none"
            raise InvalidOptions(f'policy "{name}" has no knob "{knob}": it has {known}')
    try:
        return entry.kind(**(entry.preset | knobs | entry.fixed))
    except ValidationError as error:
        raise InvalidOptions(f'policy "{name}": {explain(error)}') from None
