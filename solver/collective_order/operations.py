"""What all ranks enqueue, as arrays: threads, queues, and the seats at which operations meet.

Groups, kinds and names are numbers here. ``pace.order`` makes these arrays of documents.
"""

from dataclasses import dataclass, field

import numpy as np

from pace.solver.arrays import BoolArray, IntArray

NO_WAIT, STREAM_WAITS, THREAD_WAITS = 0, 1, 2


def _no_edges() -> IntArray:
    return np.zeros((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Operations of all ranks; those of one thread are in the order in which it issues them.

    An operation starts when its thread has issued it, and all of these have ended: what its thread waited
    for before, what ran before it on its queue, what its stream waits for, what its seat did before, and
    what `edges` name. Then it ends, unless it has a seat: then it ends when the operations of one number at
    all seats of its communicator have started.

    Attributes
    ----------
    thread : integer array of shape (n,)
        Number of the thread that issues it.
    stream, queue : integer arrays of shape (n,)
        Queues have numbers, and each belongs to one rank; -1 for none. `stream` is where the thread issues
        from: the operation waits for it. `queue` is where it runs: operations there run one at a time.
    seat : integer array of shape (n,)
        A seat is one rank's place in one communicator; -1 for an operation that meets nobody. The k-th
        operations of all seats of a communicator meet.
    waits : integer array of shape (n,)
        ``NO_WAIT``; ``STREAM_WAITS``: what is issued from the stream later starts after its end;
        ``THREAD_WAITS``: the thread issues nothing before its end.
    kind, dtype, size_bytes : integer arrays of shape (n,)
        What must agree where operations meet; -1 for unknown, which agrees with everything.
    is_batched : boolean array of shape (n,)
        Whether it leaves its queue to others of its batch; what ends the batch is an operation of its own.
    device : integer array of shape (n,)
        Of operations that a device starts in the order of their issue, the number of the device; else -1.
    seat_communicator : integer array of shape (seats,)
    seat_is_ordered : boolean array of shape (seats,)
        Whether operations of a seat run one at a time; else only their numbers follow from their order.
    edges : integer array of shape (edges, 2)
        Pairs (operation, what it waits for).
    """

    thread: IntArray
    stream: IntArray
    queue: IntArray
    seat: IntArray
    waits: IntArray
    kind: IntArray
    dtype: IntArray
    size_bytes: IntArray
    is_batched: BoolArray
    device: IntArray
    seat_communicator: IntArray
    seat_is_ordered: BoolArray
    edges: IntArray = field(default_factory=_no_edges)

    def __len__(self) -> int:
        return len(self.thread)
