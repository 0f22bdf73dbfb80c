"""The transfer plan: which updates go when, over which host, at which rate, and which are dropped and why."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from pace.documents.base import Bytes, Document, Index
from pace.documents.profile import Name, Seconds
from pace.documents.schedule import Sha256
from pace.fabric.documents.batch import Version

PlanRule = Literal["strict", "paper"]
PlanOrder = Literal["greedy", "search", "exact"]
LatePolicy = Literal["drop", "hold", "pace", "downweight"]

# A sum with one that is not a number exceeds nothing.
Finite = Annotated[float, Field(allow_inf_nan=False)]


class TransferOptions(Document):
    """Options of planning transfers.

    Attributes
    ----------
    rule
        "strict" keeps every delay bound; "paper" is the MLfabric paper's Algorithm 2, which does not.
    order
        "greedy" in milliseconds; "search" tries other orders; "exact" is a program for up to 7 updates.
    late
        What happens to an update that others overtake past its deadline.
    aggregators
        How many of the network's aggregators to use at most; null for all.
    seed
        Null takes the fastest aggregators; a number takes random ones.
    check
        Where the divergence bound is kept: at every commit, or only after the batch.
    """

    rule: PlanRule = "strict"
    order: PlanOrder = "greedy"
    late: LatePolicy = "drop"
    aggregators: Index | None = None
    seed: Index | None = None
    check: Literal["commit", "batch-end"] = "commit"


class DroppedUpdate(Document):
    """An update that is not sent.

    Attributes
    ----------
    witness
        The updates that are why: the others that want the same commit positions ("infeasible"), or those
        that commit before it ("overtaken").
    """

    id: Name
    reason: Literal["expired", "infeasible", "overtaken", "undeliverable"]
    witness: tuple[Name, ...] = ()


class Transfer(Document):
    """One update, or the sum of several, from one host to another.

    Attributes
    ----------
    after
        Transfers that must have arrived before this one starts. Times are predictions, this is the rule.
    rates
        (start, end, bytes per second), in order.
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
        Version of the model afterwards. It rises by the number of updates.
    weights
        Factor on each update: below 1 for what is late and downweighted.
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
        On the server's lead after the batch.
    delay_s
        Seconds by which the server's last commit was moved to keep the bound.
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
        On the mean commit time of the kept updates.
    bound
        Plans for which the lower bound holds: "direct" (those without aggregators) or "uplinks" (all).
    gap
        mean_commit_s / lower_bound_s - 1.
    """

    last_commit_s: Seconds
    mean_commit_s: Seconds
    lower_bound_s: Seconds
    bound: Literal["direct", "uplinks"] = "direct"
    gap: Annotated[float, Field(allow_inf_nan=False)]


class TransferPlan(Document):
    """The plan of one batch on one network. Whether it fits them is for ``pace fabric check`` to say."""

    schema_version: Literal[1] = 1
    batch_sha256: Sha256
    rule: PlanRule
    late: LatePolicy = "drop"
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
