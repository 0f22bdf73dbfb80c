"""How a scheduler plans: what its owner chooses once, for as long as it runs."""

from dataclasses import dataclass
from pathlib import Path

from pace.documents.fabric.batch import DivergenceLimit
from pace.documents.fabric.transfer_plan import LatePolicy
from pace.runtime.fabric.scheduling.commit_groups import Merge


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How a scheduler plans.

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
    divergence
        How far the server may lead its replica; None for no replica.
    tick_s
        How often is planned at least, and how far ahead the server's link is booked.
    failover_s
        How long a server may be gone before the replica takes its place.
    """

    delay_bound: int | None = None
    late: LatePolicy = "drop"
    merge: Merge = "sum"
    momentum: float = 0.0
    aggregators: tuple[str, ...] | None = None
    most_aggregators: int | None = None
    divergence: DivergenceLimit | None = None
    tick_s: float = 0.1
    failover_s: float = 2.0
    transfer_log: Path | None = None
