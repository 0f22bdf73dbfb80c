"""Options of a scheduler, fixed while it runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from pace.errors import InvalidOptions
from pace_fabric.documents.batch import DivergenceLimit
from pace_fabric.documents.transfer_plan import LatePolicy
from pace_fabric.runtime.scheduling.commit_groups import FabricUpdate, Merge
from pace_fabric.solver.aggregation import AggregateSize


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Options of a scheduler.

    Attributes
    ----------
    delay_bound
        Every committed update's delay stays below it; None for no bound.
    late
        What becomes of an update that others overtake past its deadline.
    merge
        Whether a commit adds its updates, or their mean with their weights.
    aggregators, most_aggregators
        Hosts that may add, all of them if None; and how many at most.
    exact_momentum
        Whether every update is a step of its own with momentum: sums are two vectors then. Otherwise a
        commit is one step with its sum.
    divergence
        How far the server may lead its replica; None for no replica.
    replicate_patiently
        Whether the replica receives nothing until half of that is used, which makes larger sums and so
        fewer bytes.
    buffer_bytes
        How much a host may keep for the replica before it is replicated whatever the bound.
    servers
        Over how many the model is split.
    tick_s
        How often is planned at least, and how far ahead the server's link is booked.
    probe_s
        After how long without any transfer a link is probed with one of 128 KiB, so that plans know what it
        carries; infinity for never. Only where rates are measured.
    failover_s
        How long a server may be gone before the replica takes its place.
    """

    delay_bound: int | None = None
    late: LatePolicy = "drop"
    merge: Merge = "sum"
    momentum: float = 0.0
    exact_momentum: bool = False
    aggregators: tuple[str, ...] | None = None
    most_aggregators: int | None = None
    divergence: DivergenceLimit | None = None
    replicate_patiently: bool = False
    buffer_bytes: float = inf
    servers: int = 1
    tick_s: float = 0.1
    probe_s: float = 1.0
    failover_s: float = 2.0
    transfer_log: Path | None = None

    def __post_init__(self) -> None:
        if self.exact_momentum and self.merge == "weighted-mean":
            raise InvalidOptions(
                "exact momentum takes a step for each update, a weighted mean one for all: choose one of them"
            )

        if self.servers > 1 and self.divergence is not None:
            raise InvalidOptions(
                f"a model that is split over {self.servers} servers cannot have a replica: "
                "leave its bound of divergence out"
            )

    @property
    def step_momentum(self) -> float:
        """The momentum if every update is a step of its own, so that sums keep steps apart; else 0."""
        return self.momentum if self.exact_momentum else 0.0

    def sum_size(self, updates: Sequence[FabricUpdate], model_bytes: int) -> AggregateSize:
        """Return how large sums of these are.

        Those of sparse updates are as large as all together, but never more than the model; those of numbers
        in fewer bytes than float32 are as large as the model.
        """
        forms = {update.held.form for update in updates}
        return AggregateSize(
            at_most_bytes=float(model_bytes) if "sparse" in forms else None,
            at_least_bytes=float(model_bytes) if forms - {"sparse", "float32"} else 0.0,
            vectors=2 if self.step_momentum else 1,
        )
