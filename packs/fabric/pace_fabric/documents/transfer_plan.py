"""The transfer plan: which updates go when, over which host, at which rate, and which are dropped and why."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from pace.documents.base import Bytes, Document, Index
from pace.documents.options import DescribedOptions, For
from pace.documents.profile import Name, Seconds
from pace.documents.schedule import Sha256
from pace_fabric.documents.batch import Version

PlanRule = Literal["strict", "paper"]
PlanOrder = Literal["greedy", "search", "exact"]
LatePolicy = Literal["drop", "hold", "pace", "downweight"]
DivergenceCheck = Literal["commit", "batch-end"]

# A sum with one that is not a number exceeds nothing.
Finite = Annotated[float, Field(allow_inf_nan=False)]


class TransferOptions(DescribedOptions):
    """Options of planning transfers."""

    rule: Annotated[PlanRule, For()] = "strict"
    """Planning rule: strict keeps every delay bound; paper is Algorithm 2 of the MLfabric paper, which may
    exceed bounds."""

    order: Annotated[PlanOrder, For()] = "greedy"
    """How the order of updates is found: greedy (takes milliseconds), search (tries other orders), or exact
    (solves an integer program, for up to 7 updates)."""

    late: Annotated[LatePolicy, For()] = "drop"
    """What happens to late updates: drop (discard them), hold (delay the updates that would overtake them),
    downweight (apply them with a smaller weight), or pace (slow workers down so that no update is late)."""

    aggregators: Annotated[Index | None, For(unset="all of the network")] = None
    """Largest number of aggregators to use."""

    seed: Annotated[Index | None, For(unset="choose the fastest aggregators")] = None
    """Choose aggregators at random, with this seed."""

    check: Annotated[DivergenceCheck, For()] = "commit"
    """When the divergence bound must hold: commit (after every commit) or batch-end (only after the last)."""


class DroppedUpdate(Document):
    """An update that is not sent.

    Attributes
    ----------
    witness
        Names of the updates that are the reason: those that need the same commit positions ("infeasible"),
        or those that are committed before it ("overtaken").
    """

    id: Name
    reason: Literal["expired", "infeasible", "overtaken", "undeliverable"]
    witness: tuple[Name, ...] = ()


class Transfer(Document):
    """One update, or the sum of several, from one host to another.

    Attributes
    ----------
    after
        Numbers of transfers that must have arrived before this one starts. This is binding; times are
        predictions.
    rates
        Planned rates as (start, end, bytes per second), in order of time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    id: Index
    source: Annotated[Name, Field(alias="from")]
    target: Annotated[Name, Field(alias="to")]
    updates: Annotated[tuple[Name, ...], Field(min_length=1)]
    size_bytes: Bytes
    after: tuple[Index, ...] = ()
    start_s: Seconds
    end_s: Seconds
    rates: tuple[tuple[Finite, Finite, Finite], ...]


class Commit(Document):
    """What the server applies at once: one update, or a sum.

    Attributes
    ----------
    version
        Version of the model after this commit. Each update adds 1.
    weights
        Factor on each update; below 1 for late updates that are downweighted.
    """

    updates: Annotated[tuple[Name, ...], Field(min_length=1)]
    at_s: Seconds
    version: Version
    weights: tuple[Finite, ...]


class ReplicaPlan(Document):
    """What the replica receives: `frozen` in this batch, `punted` later, both in commit order.

    Attributes
    ----------
    bound
        Bound on the replica's divergence after the batch.
    delay_s
        Seconds by which the server's last commit was delayed to keep the bound.
    """

    frozen: tuple[Name, ...] = ()
    punted: tuple[Name, ...] = ()
    bound: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    delay_s: Annotated[float, Field(allow_inf_nan=False)] = 0.0


class PredictedCommits(Document):
    """When the kept updates are committed, and what no plan can beat.

    Attributes
    ----------
    lower_bound_s
        Lower bound on the mean commit time of the kept updates, in seconds.
    bound
        Plans for which the lower bound holds: "direct" (those without aggregators) or "all".
    gap
        mean_commit_s / lower_bound_s - 1.
    """

    last_commit_s: Seconds
    mean_commit_s: Seconds
    lower_bound_s: Seconds
    bound: Literal["direct", "all"] = "direct"
    gap: Annotated[float, Field(allow_inf_nan=False)]


class TransferPlan(Document):
    """The plan of one batch on one network. ``pace fabric check`` says whether it fits them.

    Attributes
    ----------
    rule, late, check
        The options by which the plan was made, and by which it is checked.
    """

    schema_version: Literal[1] = 1
    batch_sha256: Sha256
    rule: PlanRule
    late: LatePolicy = "drop"
    check: DivergenceCheck = "commit"
    solver: str
    order: tuple[Name, ...]
    dropped: tuple[DroppedUpdate, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    commits: tuple[Commit, ...] = ()
    replica: ReplicaPlan = ReplicaPlan()
    predicted: PredictedCommits

    def to_json(self) -> bytes:
        """Serialize; the same plan always gives the same bytes."""
        return self.model_dump_json(indent=2, by_alias=True).encode() + b"\n"
