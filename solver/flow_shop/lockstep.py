"""When planned partitions go up and come down, with workers that are equal and in lock step.

Then one worker stands for all. It has one connection to each server, which carries one message at a time;
messages under way share the worker's link evenly, up to what a server's link leaves each worker. Where
workers' hosts are the servers, messages share the links between hosts max-min fairly, and a part has arrived
when its last copy has: exact for two workers, close for more. A partition can be pulled `latency_s` after
its push has ended, when the same push of all other workers has ended too.
"""

from dataclasses import dataclass

import numpy as np

from pace.solver.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLinks:
    """What one worker's messages share.

    Attributes
    ----------
    num_servers
        Connections, each with one message at a time in each direction.
    bytes_per_s
        Of the worker's link, in each direction.
    connection_bytes_per_s
        Most that one connection carries in one direction.
    overhead_bytes
        Added to every message: the link time that it loses.
    latency_s
        From the end of a push to the start of its pull.
    colocated_workers
        How many workers share their hosts and links with the servers, so that pushes and pulls meet on a
        link; 0 where servers have hosts of their own. `bytes_per_s` is then what a worker sends and receives
        together if all hosts are busy, and a host's link carries ``(workers - 1) * connection_bytes_per_s``.
    """

    num_servers: int
    bytes_per_s: float
    connection_bytes_per_s: float
    overhead_bytes: float = 0.0
    latency_s: float = 0.0
    colocated_workers: int = 0

    @property
    def shared(self) -> bool:
        """Whether pushes and pulls share links."""
        return self.colocated_workers > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LockstepTimes:
    """Arrays of shape (num_parts,) in seconds: when every part's push and pull start and end."""

    push_starts: FloatArray
    push_ends: FloatArray
    pull_starts: FloatArray
    pull_ends: FloatArray


def send_in_lockstep(
    links: SharedLinks,
    *,
    ready: FloatArray,
    sizes: FloatArray | IntArray,
    server: IntArray,
    pull_sizes: FloatArray | IntArray | None = None,
    in_order: bool = False,
) -> LockstepTimes:
    """Send parts, listed in the planned order, over the links; O(parts * servers).

    Parameters
    ----------
    ready, sizes, server : arrays of shape (num_parts,)
        When each part may be pushed, its bytes and its server. Of the parts that wait for a connection the
        one listed first goes first.
    pull_sizes : array of shape (num_parts,)
        Bytes that come back; those that went, if left out.
    in_order
        Whether a connection waits for the part that is planned next; else it never idles ("overtake").
    """
    from pace.solver.kernels import lockstep as kernel

    times = np.zeros((4, len(ready)))
    up = np.asarray(sizes, dtype=np.float64) + links.overhead_bytes
    down = up if pull_sizes is None else np.asarray(pull_sizes, dtype=np.float64) + links.overhead_bytes
    kernel.send_in_lockstep(
        np.asarray(ready, dtype=np.float64),
        up,
        down,
        np.asarray(server, dtype=np.int64),
        np.arange(len(ready), dtype=np.int64),
        links.num_servers,
        links.bytes_per_s,
        links.connection_bytes_per_s,
        links.colocated_workers,
        links.latency_s,
        in_order,
        times,
    )
    return LockstepTimes(push_starts=times[0], push_ends=times[1], pull_starts=times[2], pull_ends=times[3])
