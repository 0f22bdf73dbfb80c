"""One job at a server: its workers, their common layout, and the end of the job."""

import itertools
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from pace.runtime.event_log import log
from pace.runtime.fork_rest import rest_in_forks
from pace.wire.frames import Frame, FrameKind, WireFault
from pace.wire.handshake import Greeting
from pace.wire.outbox import Outbox, Parcel
from pace.wire.streams import Stream
from pace_servers.runtime.arithmetic import Flat
from pace_servers.runtime.layout import Layout, read_layout
from pace_servers.runtime.shared_weights import SharedWeights
from pace_servers.runtime.sparse_frames import parcel_of, read_runs
from pace_servers.runtime.sums import Reply, Sums
from pace_servers.runtime.tables.served_tables import ServedTables, TableAnswer, WorkerLeft
from pace_servers.runtime.tables.table_messages import TableReader, table_parcel


class Member:
    """The server's side of a worker's connection."""

    def __init__(self, greeting: Greeting, stream: Stream, session: "Session") -> None:
        rank = greeting.rank
        self.rank = rank
        self.pacing_bytes_per_s = greeting.pacing_bytes_per_s
        self.stream = stream
        self.layout = -1
        self.left = False
        self.tables = TableReader()
        self.outbox = Outbox(
            stream,
            name=f"pace.server.out.{rank}",
            on_loss=lambda error: session.abort(f"{session.name(rank)} is gone: {error}", lost=True),
        )
        self._scratch = memoryview(bytearray())
        self._numbers: dict[str, Flat] = {}

    def make_room(self, size_bytes: int) -> None:
        """Allocate room for frames of `size_bytes`."""
        if len(self._scratch) < size_bytes:
            self._scratch = memoryview(bytearray(size_bytes))
            self._numbers = {}

    def receive(self, length: int, dtype: str) -> Flat:
        """Read a payload; it is valid until the next one is read."""
        numbers = self._numbers.get(dtype)
        if numbers is None:
            numbers = self._numbers[dtype] = Flat(self._scratch, dtype)
        self.stream.read_into(self._scratch[:length])
        return numbers

    def receive_bytes(self, length: int) -> memoryview:
        """Read a payload; it is valid until the next one is read."""
        self.stream.read_into(self._scratch[:length])
        return self._scratch[:length]


class Session:
    """A job's workers at a server.

    Parameters
    ----------
    most_bytes
        The most bytes that a layout may need.
    on_end
        Called when the last worker is gone.
    checkpoints
        Folder for checkpoints of tables.
    """

    def __init__(
        self,
        job: str,
        size: int,
        *,
        most_bytes: int,
        on_end: Callable[["Session"], None],
        checkpoints: Path | None = None,
    ) -> None:
        self.job = job
        self.size = size
        self._most_bytes = most_bytes
        self._on_end = on_end
        self._lock = threading.RLock()
        rest_in_forks(self._lock)
        self.members: dict[int, Member] = {}
        self._joined: set[int] = set()
        self._layouts: dict[int, tuple[Layout, int]] = {}
        self.held: dict[int, Sums | SharedWeights] = {}
        self._tables = ServedTables(size, most_bytes=most_bytes, folder=checkpoints)
        self.failure: str | None = None
        self.ended = False

    def name(self, rank: int) -> str:
        """Return a worker's name for messages."""
        return f"rank {rank}"

    def join(self, greeting: Greeting, stream: Stream, welcome: bytes) -> Member:
        """Admit a worker, and send it the welcome.

        Raises
        ------
        WireFault
            If it does not fit the job: the job has ended, or its rank or number of workers is wrong.
        """
        with self._lock:
            if self.ended or self.failure is not None:
                raise WireFault(f"the job has ended: {self.failure or 'all workers have left'}")
            if greeting.size != self.size:
                raise WireFault(
                    f"rank {greeting.rank} says that there are {greeting.size} workers, "
                    f"the others say {self.size}"
                )
            if greeting.rank in self._joined:
                raise WireFault(f"rank {greeting.rank} is already connected")
            self._joined.add(greeting.rank)
            member = self.members[greeting.rank] = Member(greeting, stream, self)
            first = Frame(kind=FrameKind.WELCOME)
            member.outbox.put((-1,), Parcel(first, memoryview(welcome)))
            return member

    def serve(self, member: Member) -> None:
        """Process a worker's frames until it leaves; runs in its own thread."""
        reason: str | None = None
        lost = False
        try:
            while self._take(member, member.stream.read()):
                pass
        except (EOFError, OSError) as error:
            reason, lost = f"{self.name(member.rank)} is gone: {error}", True
        except WireFault as error:
            reason = f"{self.name(member.rank)} breaks the protocol: {error}"
        except Exception as error:  # after any error, no worker must wait for this thread
            reason = f"serving {self.name(member.rank)} failed: {type(error).__name__}: {error}"
        finally:
            self._part(member, reason, lost=lost)

    def _take(self, member: Member, frame: Frame) -> bool:
        if frame.kind is FrameKind.PING:
            return True
        if frame.kind is FrameKind.BYE:
            return False
        if frame.kind is FrameKind.ABORT:
            reason = member.stream.read_payload(frame.length).decode(errors="replace")
            self.abort(reason, lost=frame.turn == 1)
            return False
        if frame.kind is FrameKind.LAYOUT:
            self._adopt(member, frame, member.stream.read_payload(frame.length))
        elif frame.kind is FrameKind.PUSH_RUNS:
            self._add_runs(member, frame)
        elif frame.kind is FrameKind.TABLE:
            self._take_rows(member, frame)
        elif frame.carries_tensor and frame.kind is not FrameKind.PULL:
            self._add(member, frame)
        else:
            raise WireFault(f"a {frame.kind.name} frame from a worker")
        return True

    def _adopt(self, member: Member, frame: Frame, document: bytearray) -> None:
        layout = read_layout(document, most_bytes=self._most_bytes)
        with self._lock:
            if frame.layout != (member.layout + 1) % (1 << 16):
                raise WireFault(f"layout {frame.layout} after layout {member.layout}")
            known, num_members = self._layouts.get(frame.layout, (layout, 0))
            if known.sha256 != layout.sha256:
                raise WireFault(
                    f"it follows another plan ({layout.sha256.hex()[:12]}) than the workers that came first"
                    f" ({known.sha256.hex()[:12]})"
                )
            if frame.layout not in self.held:
                make = Sums if layout.purpose == "sum" else SharedWeights
                self.held[frame.layout] = make(layout, self.size)
            self._layouts[frame.layout] = known, num_members + 1
            member.layout = frame.layout
            if num_members + 1 == self.size:  # no worker uses earlier layouts any more; some may be ahead
                for old in itertools.takewhile(lambda number: number != frame.layout, list(self.held)):
                    del self.held[old], self._layouts[old]
        member.make_room(layout.longest_run_bytes)
        pace = layout.pace_bytes_per_s
        member.stream.set_pacing(member.pacing_bytes_per_s if pace is None else pace)

    def _take_rows(self, member: Member, frame: Frame) -> None:
        message = member.tables.read(member.stream, frame)
        if message is None:
            return
        with self._lock:
            if self.failure is None:
                try:
                    self._send_rows(self._tables.take(member.rank, frame, message))
                except WorkerLeft as error:
                    self.abort(str(error))

    def _send_rows(self, answers: Iterable[TableAnswer]) -> None:
        for rank, word, table, request, message in answers:
            self.members[rank].outbox.put((0,), table_parcel(word, table, request, message))

    def _layout_of(self, member: Member, frame: Frame) -> Layout:
        known = self._layouts.get(frame.layout)
        if known is None or frame.layout != member.layout:
            raise WireFault(f"a chunk of layout {frame.layout}, which is not in force")
        return known[0]

    def _add_runs(self, member: Member, frame: Frame) -> None:
        layout = self._layout_of(member, frame)
        if frame.length > layout.longest_run_bytes:
            raise WireFault(f"runs in {frame.length} bytes; at most {layout.longest_run_bytes} are allowed")
        sparse = read_runs(frame, member.receive_bytes(frame.length), layout)
        with self._lock:
            if self.failure is not None:
                return
            held = self.held[frame.layout]
            self._reply(frame.layout, layout, held, held.push_runs(member.rank, frame, sparse))

    def _reply(
        self, number: int, layout: Layout, held: Sums | SharedWeights, replies: Iterable[Reply]
    ) -> None:
        """Queue replies to workers after a push, unless a worker has left; call it with the lock held."""
        if isinstance(held, Sums) and (gone := self._gone()) is not None:
            self.abort(f"{self.name(gone)} has left the training")
            return
        self._put(layout, number, replies)

    def _add(self, member: Member, frame: Frame) -> None:
        layout = self._layout_of(member, frame)
        chunks = layout.check(frame)
        with self._lock:
            held = self.held[frame.layout]
            place = held.begin(member.rank, frame, chunks)
        payload: Flat | None = None
        if place is None:
            payload = member.receive(frame.length, layout.segments[frame.segment].dtype)
        else:
            member.stream.read_into(place)
        with self._lock:
            if self.failure is not None:
                return
            self._reply(frame.layout, layout, held, held.push(member.rank, frame, chunks, payload))

    def _gone(self) -> int | None:
        return next((rank for rank, member in self.members.items() if member.left), None)

    def _put(self, layout: Layout, number: int, replies: Iterable[Reply]) -> None:
        for worker, segment, round_, offset, memory, runs in replies:
            turn = layout.segments[segment].turn
            first = Frame(FrameKind.PULL, number, round_, segment, offset, 0, turn)
            self.members[worker].outbox.put(
                (number, round_, self._rank(turn), segment, offset), parcel_of(first, memory, runs, layout)
            )

    def _rank(self, turn: int) -> int:
        """Return the place of a reply among the replies of its round to a worker."""
        return turn

    def _part(self, member: Member, reason: str | None, *, lost: bool) -> None:
        """Handle the end of a worker's connection, by a goodbye or for a reason that ends the job."""
        with self._lock:
            if reason is not None and not member.left:
                self.abort(reason, lost=lost)
            member.left = True
            held = self.held.get(member.layout)
            if self.failure is None and held is not None:
                if held.unfinished:
                    self.abort(f"{self.name(member.rank)} has left the training")
                else:
                    self._put(self._layouts[member.layout][0], member.layout, held.leave(member.rank))
            if self.failure is None:
                try:
                    self._send_rows(self._tables.leave(member.rank))
                except WorkerLeft as error:
                    self.abort(str(error))
        member.outbox.finish()
        if not member.outbox.join(member.stream.silence_s):
            member.outbox.drop()
            member.outbox.join(member.stream.silence_s)
        member.stream.shutdown()
        member.stream.close()
        with self._lock:
            if all(each.left for each in self.members.values()) and not self.ended:
                self.ended = len(self.members) == self.size or self.failure is not None
                if self.ended:
                    self._on_end(self)

    def abort(self, reason: str, *, lost: bool = False) -> None:
        """End the job for all its workers; the first reason counts.

        Parameters
        ----------
        lost
            Whether only a connection was lost, so that the workers may connect again.
        """
        with self._lock:
            if self.failure is None:
                self.failure = reason
                log.info("pace.server_job_failed", job=self.job, reason=reason)
            for member in self.members.values():
                member.outbox.abort(self.failure, lost=lost)

    def finish(self) -> None:
        """Say goodbye to all workers after their remaining replies."""
        with self._lock:
            for member in self.members.values():
                member.outbox.finish()

    def drop(self) -> None:
        """End all connections."""
        with self._lock:
            for member in self.members.values():
                member.outbox.drop()
