"""Updates that wait for a server, as arrays."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pace.solver.arrays import FloatArray, IntArray
from pace_fabric.solver.capacity import Capacities, Reservation

NO_DEADLINE = 2**62


@dataclass(frozen=True, kw_only=True)
class Updates:
    """Updates of one batch, in batch order.

    Parameters
    ----------
    size
        (n,) bytes.
    host
        (n,) host that holds each.
    server
        Host of the server.
    deadline
        (n,) last position, counted from 1, at which each may commit; NO_DEADLINE for none.
    ready
        (n,) seconds from which each may leave its host.
    """

    size: FloatArray
    host: IntArray
    server: int
    deadline: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    ready: FloatArray = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        n = len(self.size)
        object.__setattr__(self, "size", np.ascontiguousarray(self.size, dtype=np.float64))
        object.__setattr__(self, "host", np.ascontiguousarray(self.host, dtype=np.int64))
        deadline = self.deadline if len(self.deadline) else np.full(n, NO_DEADLINE)
        object.__setattr__(self, "deadline", np.ascontiguousarray(deadline, dtype=np.int64))
        ready = self.ready if len(self.ready) else np.zeros(n)
        object.__setattr__(self, "ready", np.ascontiguousarray(ready, dtype=np.float64))
        if not len(self.host) == len(self.deadline) == len(self.ready) == n:
            raise ValueError("size, host, deadline and ready have different lengths")

    def __len__(self) -> int:
        return len(self.size)

    @cached_property
    def indices(self) -> IntArray:
        """All updates, in batch order."""
        return np.arange(len(self), dtype=np.int64)

    def require_hosts(self, capacities: Capacities, *others: int) -> None:
        """Raise ValueError if a host is not on the network: compiled loops do not look."""
        hosts = (self.server, *others, *([int(self.host.min()), int(self.host.max())] if len(self) else []))
        unknown = [host for host in hosts if not 0 <= host < capacities.num_hosts]
        if unknown:
            raise ValueError(f"host {unknown[0]}: the network has hosts 0 to {capacities.num_hosts - 1}")

    def take(self, chosen: IntArray) -> "Updates":
        """Return the chosen updates, in the order given."""
        return Updates(
            size=self.size[chosen],
            host=self.host[chosen],
            server=self.server,
            deadline=self.deadline[chosen],
            ready=self.ready[chosen],
        )

    def finish(self, update: int, capacities: Capacities) -> float:
        """Return when an update would reach the server."""
        return capacities.finish(
            int(self.host[update]), self.server, float(self.size[update]), float(self.ready[update])
        )

    def reserve(self, update: int, capacities: Capacities) -> Reservation:
        """Book an update's transfer to the server."""
        return capacities.reserve(
            int(self.host[update]), self.server, float(self.size[update]), float(self.ready[update])
        )


def deadlines(versions: IntArray, version: int, delay_bound: int) -> IntArray:
    """Return the last commit position of updates that were computed from `versions`.

    The delay is counted just before the commit, so position p has delay version + p - 1 - v; a position up to
    v + delay_bound - version keeps the delay below the bound.
    """
    last: IntArray = np.asarray(versions, dtype=np.int64) + delay_bound - version
    return last
