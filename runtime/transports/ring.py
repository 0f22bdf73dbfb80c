"""Reduce-scatters and all-gathers over the point-to-point messages of a process group, in a ring.

Gloo's own reduce-scatter sends as many bytes as an all-reduce. Here a rank sends (W - 1) / W of a buffer's
bytes for each half. Rows are sent in chunks: one is passed on while the next is received. Messages are
matched by the call's name, so ranks may make calls in different orders.

A row is summed in the order of ranks, beginning after its owner. So the result always has the same bits.
"""

import collections
import datetime
import queue
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import Store

from pace.runtime.transports.gloo_groups import broadcast_over, connect_group, release_groups
from pace.runtime.transports.torch_threads import Sockets, torch_thread
from pace.runtime.transports.transport import Done, Parts

# A row is sent in this many equal chunks, unless they are too small: the first is passed on while the others
# are being sent, so that the network is always busy. With a single chunk, four ranks at 200 Mbit/s took 18 %
# longer for 600 kB.
CHUNKS = 4
LEAST_CHUNK_BYTES = 8 << 10
MOST_CHUNK_BYTES = 512 << 10

# How many bytes are awaited ahead. With a number of chunks instead, rows of weights and biases left the
# network idle between messages: four ranks at 200 Mbit/s took 20 % longer for 5.6 MB in six parts.
_AHEAD_BYTES = 4 * MOST_CHUNK_BYTES


class _Call(NamedTuple):
    run: Callable[[], None]
    done: Done


class Ring:
    """Makes calls one after another in its own thread, with ranks in a ring.

    Parameters
    ----------
    group
        A process group with ``send`` and ``recv``, not used by other code.

    Attributes
    ----------
    sent_bytes
        Number of bytes that this rank has sent.
    """

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group = group
        self._rank = rank
        self._size = size
        self.sent_bytes = 0
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = torch_thread(self._run, name="pace.ring")
        self._thread.start()

    def reduce_scatter(self, parts: Sequence[torch.Tensor], name: str, done: Done) -> None:
        """Start to sum matrices by rows; see ``Transport``. Other rows than this rank's are overwritten."""
        self._calls.put(_Call(lambda: self._reduce_scatter(parts, _tag(name)), done))

    def all_gather(self, parts: Sequence[torch.Tensor], name: str, done: Done) -> None:
        """Start to give every rank all rows; see ``Transport``."""
        self._calls.put(_Call(lambda: self._all_gather(parts, _tag(name)), done))

    def close(self, *, failed: bool) -> None:
        """End the thread after the calls in progress; after a failure it may be left running."""
        self._calls.put(None)
        self._thread.join(timeout=1.0 if failed else None)
        self._group = None

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            error: BaseException | None = None
            try:
                call.run()
            except Exception as raised:  # any error is passed on to waiting threads
                error = raised
            call.done(error)
            del call

    def _reduce_scatter(self, parts: Sequence[torch.Tensor], tag: int) -> None:
        # In step s a rank passes on row (rank - 1 - s), and receives and adds the one before it.
        def into(_step: int, own: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(own)

        self._circulate(parts, tag, first=-1, into=into, take=lambda own, received: own.add_(received))

    def _all_gather(self, parts: Sequence[torch.Tensor], tag: int) -> None:
        # In step s a rank passes on row (rank - s), and receives the one before it where it belongs.
        self._circulate(parts, tag, first=0, into=lambda _step, own: own, take=lambda _own, _received: None)

    def _circulate(
        self,
        parts: Sequence[torch.Tensor],
        tag: int,
        *,
        first: int,
        into: Callable[[int, torch.Tensor], torch.Tensor],
        take: Callable[[torch.Tensor, torch.Tensor], object],
    ) -> None:
        """Pass rows around the ring: take each received row, and pass it on unless it is the last.

        Parameters
        ----------
        first
            The row to send first, relative to this rank's row.
        into
            Returns where to receive a chunk, given the step and this rank's own memory of the chunk.
        take
            Called with this rank's own memory of a chunk and the received chunk.
        """
        rank, size = self._rank, self._size
        after, before = (rank + 1) % size, (rank - 1) % size
        rows = [list(_chunks(parts, (rank + first - step) % size)) for step in range(size)]
        # The chunks that arrive, in order, each with the step of the ring.
        arriving = [(step, chunk) for step, row in enumerate(rows[1:]) for chunk in row]
        expected = iter(arriving)
        waiting: collections.deque[tuple[Any, torch.Tensor]] = collections.deque()
        awaited_bytes = 0

        def await_more() -> None:
            nonlocal awaited_bytes
            while awaited_bytes < _AHEAD_BYTES and (ahead := next(expected, None)) is not None:
                buffer = into(*ahead)
                waiting.append((self._group.recv([buffer], before, tag), buffer))
                awaited_bytes += buffer.numel() * buffer.element_size()

        # Gloo sends a message only after the receiver has announced that it awaits it. If this rank first
        # gave its own row to the kernel, the announcement would queue behind the row, and the previous rank
        # would be late.
        await_more()
        sends = [self._send(chunk, after, tag) for chunk in (rows[0] if size > 1 else [])]
        for step, chunk in arriving:
            await_more()
            work, received = waiting.popleft()
            work.wait()
            awaited_bytes -= received.numel() * received.element_size()
            take(chunk, received)
            if step < size - 2:
                sends.append(self._send(chunk, after, tag))
        for work in sends:
            work.wait()

    def _send(self, chunk: torch.Tensor, to: int, tag: int) -> Any:
        self.sent_bytes += chunk.numel() * chunk.element_size()
        return self._group.send([chunk], to, tag)


class GlooHalves:
    """A ring with a process group of its own, for jobs whose library has no fast halves; every rank opens it.

    Parameters
    ----------
    hostname
        The name by which other ranks reach this one.
    scale
        Every sum is multiplied by this.
    """

    hand_over_s = 1e-3

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: datetime.timedelta,
        hostname: str,
        scale: float,
    ) -> None:
        self._rank = rank
        self._scale = scale
        self._sockets = Sockets()
        with self._sockets.opened_here():
            self._groups: list[Any] = [
                connect_group(store, name, rank, size, timeout=timeout, hostname=hostname)
                for name in ("halves", "decisions")
            ]
        self.ring = Ring(self._groups[0], rank, size)

    def reduce_scatter(self, parts: Parts, name: str, done: Done) -> None:
        """Start to sum matrices by rows; see ``Transport``."""

        def scaled(error: BaseException | None) -> None:
            if error is None and self._scale != 1.0:
                with torch.no_grad():
                    for part in parts:
                        part[self._rank].mul_(self._scale)
            done(error)

        self.ring.reduce_scatter(parts, name, scaled)

    def all_gather(self, parts: Parts, name: str, done: Done) -> None:
        """Start to give every rank all rows; see ``Transport``."""
        self.ring.all_gather(parts, name, done)

    def decide(self, segment: int | None) -> int:
        """Publish or receive rank 0's choice; see ``Transport``."""
        message = torch.tensor([-1 if segment is None else segment], dtype=torch.int64, device="cpu")
        broadcast_over(self._groups[1], message)
        return int(message.item())

    def close(self, *, failed: bool) -> None:
        """End the ring, and close its connections."""
        self.ring.close(failed=failed)
        groups, self._groups = self._groups, []
        release_groups(groups, self._sockets, failed=failed)


def _tag(name: str) -> int:
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


def _chunks(parts: Sequence[torch.Tensor], row: int) -> Iterator[torch.Tensor]:
    """Yield a row in contiguous chunks."""
    for part in parts:
        equal = -(-part.shape[1] // CHUNKS)
        least, most = (size // part.element_size() for size in (LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES))
        step = min(max(equal, least), most)
        ends = [*range(0, part.shape[1], step), part.shape[1]]
        for start, end in pairwise(ends):
            if end > start:
                yield part[row, start:end]
