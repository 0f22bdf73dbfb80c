"""What pushing gradients and pulling sums costs: links, rates, what each part loses, and rows of tables."""

from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, model_validator

from pace import collectives
from pace.documents.base import Document
from pace.documents.cost_document import CostDocument, NetworkChange, NonNegative, Positive
from pace.errors import InvalidProfile
from pace.solver.cost_curve import CostCurve
from pace.solver.flow_shop.lockstep import SharedLinks

# With each row that is sent goes its number.
KEY_BYTES = 4
# A frame's header, and its numbers of chunks and runs.
_FRAME_BYTES = 44
# As many batches together are counted at most.
MOST_BATCHES = 64


def sparse_bytes(row_bytes: float, whole_bytes: int) -> float:
    """Return the bytes that are sent for rows and their numbers; all, if that is more than half of all."""
    sent = row_bytes + _FRAME_BYTES
    return sent if 2 * sent < whole_bytes else float(whole_bytes)


def of_batches(values: tuple[float, ...], batches: int) -> float:
    """Return what so many batches have together: values[n - 1] is that of n batches.

    For more batches than there are values, each adds as much as the last one. That is an upper estimate, as
    batches have ever more in common with those before.
    """
    known = len(values)
    if batches <= known:
        return values[batches - 1]
    return values[-1] + (batches - known) * (values[-1] - (values[-2] if known > 1 else 0.0))


class TouchedRows(Document):
    """The rows of an embedding table that steps touch; servers exchange only these, with their numbers.

    Attributes
    ----------
    rows
        Number of rows of the table.
    distinct
        Mean number of different rows in one worker's step, in two workers' steps together, and so on.
    std
        Standard deviation of the number of rows in one worker's step.
    """

    refused_as = InvalidProfile

    rows: int = Field(ge=1, lt=2**63)
    distinct: tuple[NonNegative, ...] = Field(min_length=1, max_length=MOST_BATCHES)
    std: NonNegative = 0.0

    @model_validator(mode="after")
    def _rows_of_the_table(self) -> Self:
        if any(after < before for before, after in pairwise(self.distinct)):
            shown = ", ".join(f"{number:g}" for number in self.distinct)
            raise ValueError(f"distinct is {shown}: expected numbers that never decrease")
        if self.distinct[-1] > self.rows:
            raise ValueError(f"distinct: {self.distinct[-1]:g} rows, but the table has {self.rows}")
        return self

    def sent_bytes(self, size_bytes: int, workers: int) -> float:
        """Return the mean bytes of the rows that so many workers touch together, with their numbers.

        Parameters
        ----------
        size_bytes
            Size of the whole table.
        """
        touched = min(of_batches(self.distinct, workers), self.rows)
        return sparse_bytes(touched * (size_bytes / self.rows + KEY_BYTES), size_bytes)


class PushPull(CostDocument):
    """g(x) = partition_s + x * e: a push of x bytes by all workers, or the pull behind it.

    With W workers, S servers of equal shares and rates B_w, B_s: e = max(1/B_w, W/(S B_s)) on servers with
    hosts of their own, e = (S + W - 2)/(S B_w) for the push and the pull together on servers that share the
    first S workers' hosts, which is a ring's 2 (W - 1)/(W B_w) for S = W.

    Attributes
    ----------
    servers
        Number of servers.
    colocated
        Whether servers run on the workers' hosts and use the same links.
    worker_bytes_per_s
        Rate of a worker's link, in each direction.
    server_bytes_per_s
        Rate of a server's link, in each direction; the workers' rate if left out, as for colocated servers.
    partition_s
        Fixed link time of each segment, whatever its size (theta).
    min_partition_bytes
        Smallest size of a segment, in bytes of the gradient before compression; 0 for any size. A smaller
        group is one segment.
    round_trip_s
        Shortest time from the end of a segment's push to the start of its pull.
    """

    kind: Literal["push-pull"] = "push-pull"
    servers: int = Field(ge=1, le=100_000)
    colocated: bool = False
    worker_bytes_per_s: Positive
    server_bytes_per_s: Positive | None = None
    partition_s: NonNegative = 0.0
    round_trip_s: NonNegative = 0.0
    # Left out where it says nothing: older documents keep their digests, and older readers take newer ones.
    min_partition_bytes: int = Field(default=0, ge=0, lt=2**63, exclude_if=lambda least: least == 0)

    @model_validator(mode="after")
    def _own_links_have_rates(self) -> Self:
        if self.colocated and self.server_bytes_per_s is not None:
            raise ValueError(
                f"server_bytes_per_s is {self.server_bytes_per_s:g}, but colocated servers use the workers' "
                "links: leave it out, or set colocated to false"
            )
        return self

    def halves(self, workers: int) -> tuple[CostCurve, CostCurve]:  # noqa: ARG002  # as other costs have it
        """Raise ValueError: nothing is scattered or gathered."""
        raise ValueError("parameter servers exchange by push and pull, not by reduce-scatter and gather")

    def seconds_per_byte(self, workers: int) -> float:
        """Return e: link time for a byte of every worker's gradient; ValueError if nothing travels."""
        rate = self.worker_bytes_per_s
        at_servers = self.server_bytes_per_s or rate
        if not self.colocated:
            return max(1 / rate, workers / (self.servers * at_servers))
        if self.servers > workers:
            raise ValueError(f"{self.servers} servers do not fit on {workers} workers' hosts")
        if workers == 1:
            raise ValueError("one worker that is its own server has nothing to exchange")
        return (self.servers + workers - 2) / (self.servers * rate)

    def cost(self, workers: int) -> CostCurve:
        """Return g for `workers` workers."""
        if self.colocated and workers == 1:
            return collectives.FREE
        return CostCurve.affine(self.partition_s, self.seconds_per_byte(workers))

    def links(self, workers: int) -> SharedLinks:
        """Return what the messages of one of `workers` equal workers share."""
        per_byte = self.seconds_per_byte(workers)
        if self.colocated:
            # Pushes and pulls take turns on one link: each half costs e / 2 a byte.
            rate = 2 / per_byte
            connection = min(rate, self.worker_bytes_per_s / (workers - 1))
        else:
            rate = self.worker_bytes_per_s
            connection = min(rate, (self.server_bytes_per_s or rate) / workers)
        return SharedLinks(
            num_servers=self.servers,
            bytes_per_s=rate,
            connection_bytes_per_s=connection,
            overhead_bytes=self.partition_s / per_byte,
            latency_s=self.round_trip_s,
            colocated_workers=workers if self.colocated else 0,
        )

    def pace_bytes_per_s(self, workers: int) -> float:
        """Return the rate at which a connection is paced, so that no queue forms before a server's link."""
        at_servers = self.server_bytes_per_s or self.worker_bytes_per_s
        return min(self.worker_bytes_per_s / self.servers, at_servers / workers)

    def with_changes(self, change: NetworkChange) -> "PushPull":
        """Change the links' rate, or a message's latency: two of them make a round trip."""
        changes: dict[str, float] = {}
        if change.bandwidth_bytes_per_s is not None:
            changes["worker_bytes_per_s"] = change.bandwidth_bytes_per_s
            if self.server_bytes_per_s is not None:
                ratio = self.server_bytes_per_s / self.worker_bytes_per_s
                changes["server_bytes_per_s"] = ratio * change.bandwidth_bytes_per_s
        if change.latency_s is not None:
            changes["round_trip_s"] = 2 * change.latency_s
        return self.model_copy(update=changes)
