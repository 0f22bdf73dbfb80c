"""Exchanges of segments over links to servers, and their repetition after the loss of a server.

If servers are not colocated, every rank keeps what it has pushed until it has the sum, and each sum until it
has the next one. So after a loss all ranks connect to the remaining servers and repeat what is missing
(``round_repair``). For the engine the exchange only takes longer.
"""

import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from pace.errors import CommunicationFailed
from pace.runtime.servers.arithmetic import Flat
from pace.runtime.servers.layout import Layout, memory_of, segment_of
from pace.runtime.servers.link import PushPullCall
from pace.runtime.servers.transport.linked_transport import LinkedTransport
from pace.runtime.servers.transport.round_repair import (
    ChunkOwners,
    SegmentProgress,
    add_nothing,
    copy_chunks,
    find_owners,
)
from pace.runtime.servers.transport.segment_exchange import SegmentExchange
from pace.runtime.transports.runs import Runs
from pace.runtime.transports.transport import After, Done, SegmentCall
from pace.solver.least_bytes import least_bytes_servers
from pace.wire.frames import CHUNK_BYTES, FrameKind


class RepeatingTransport(LinkedTransport):
    """Exchanges segments, and repeats exchanges after a loss; see ``LinkedTransport`` for the arguments."""

    # Whether rounds are repeated after a loss, if servers are not colocated.
    repeats = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._exchanges: dict[str, SegmentExchange] = {}
        self._prepared: tuple[Sequence[SegmentCall], dict[str, Any]] = (), {}
        self._num_prepared = 0
        self._repeating = False
        # The attempt in which a link was lost, and the first reason; None without a loss.
        self._loss: tuple[int, str] | None = None
        self._state = threading.RLock()
        self._changed = threading.Condition(self._state)
        super().__init__(*arguments, **named)

    def reopen(self, said: Sequence[bytes] | None = None) -> None:
        """After a failure, connect again to the servers that answer all ranks; every rank must call it.

        Afterwards no segments are prepared.

        Parameters
        ----------
        said
            The payloads of all ranks from a gathering in which other ranks called this, but not this rank.

        Raises
        ------
        CommunicationFailed
            On every rank, if no server is left, or a rank is gone.
        """
        if self._server is not None:
            raise CommunicationFailed(self._failure or "nothing was lost")
        self._exchanges = {}
        told = self._relink(self.gather, dict, said)
        if not any(each["lost"] for each in told):
            raise CommunicationFailed(self._failure or "nothing was lost")
        self._failure = None

    def prepare(
        self,
        calls: Sequence[SegmentCall],
        *,
        pace_bytes_per_s: float | None = None,
        weights: bool = False,
        staleness: int | None = None,
        seeder: int = 0,
    ) -> None:
        """Place the segments of a plan on the servers; every rank calls it alike, with nothing in flight.

        Parameters
        ----------
        pace_bytes_per_s
            The rate of connections in the plan; a rate that the user has set takes precedence.
        weights
            Whether servers hold weights instead of sums.
        staleness, seeder
            See ``Layout``.
        """
        keeps = self.repeats and self._server is None and not weights
        if self._repeating and keeps:
            self._meet()  # after this no rank needs earlier sums any more
        how = {"pace_bytes_per_s": pace_bytes_per_s, "weights": weights, "staleness": staleness}
        how["seeder"] = seeder
        with self._state:
            self._prepared = list(calls), how
            self._num_prepared += 1
            self._repeating = keeps
            self._exchanges = {}
            for call in calls:
                if call.pushed:
                    served = segment_of(call.tensor, call.turn)
                    kept = Flat.zeros(served.size_bytes, served.dtype).memory if keeps else None
                    self._exchanges[call.name] = SegmentExchange(served, call.link, kept)
            if self._loss is None:
                self._announce()
            self._changed.notify_all()

    def _announce(self) -> None:
        """Tell every server which segments it has."""
        how = self._prepared[1]
        exchanges = list(self._exchanges.values())
        placed = least_bytes_servers([each.served.size_bytes for each in exchanges], len(self._links))
        servers = [
            server if each.planned_link is None or self._some_lost else each.planned_link
            for each, server in zip(exchanges, placed, strict=True)
        ]
        for number, link in enumerate(self._links):
            held = [each for each, server in zip(exchanges, servers, strict=True) if server == number]
            layout = Layout(
                segments=tuple(each.served for each in held),
                purpose="weights" if how["weights"] else "sum",
                staleness=how["staleness"],
                deterministic=self.deterministic,
                seeder=how["seeder"],
                pace_bytes_per_s=None if self._paced_by_user else how["pace_bytes_per_s"],
            )
            link.announce(self._announced(layout))
            for place, each in enumerate(held):
                each.link, each.place, each.round = link, place, 0

    def _announced(self, layout: Layout) -> Layout:
        return layout

    def server_of(self, name: str) -> int:
        """Return the number of the server that a prepared segment is on."""
        return self._links.index(self._exchanges[name].link)

    def _meet(self) -> None:
        self.gather(b"")

    # Segments.

    def seed(self, segment: torch.Tensor, name: str, done: Done) -> None:
        """Give a server its first weights; only one rank does this."""
        self._start(segment, name, FrameKind.SEED, done, None)

    def _start(
        self,
        segment: torch.Tensor,
        name: str,
        kind: FrameKind,
        done: Done,
        after: After | None,
        runs: Runs | None = None,
    ) -> None:
        def complete(error: BaseException | None) -> None:
            if error is None and after is not None:
                try:
                    after()
                except Exception as raised:  # any error is passed on to waiting threads
                    error = raised
            done(error)

        with self._state:
            if self._failure is not None:
                raise CommunicationFailed(self._failure)
            each = self._exchanges[name]
            each.complete = complete
            each.call = PushPullCall(
                segment=0,
                round=0,
                memory=memory_of(segment),
                done=complete,
                kind=kind,
                received=each.received,
                runs=runs,
            )
            if self._loss is None and not each.helping:
                self._send(each)

    def _send(self, each: SegmentExchange) -> None:
        """Give a segment's call to its link; call it with the lock held."""
        call, attempt = each.call, self._attempt
        assert call is not None
        each.round += call.kind is FrameKind.PUSH

        def ended(error: BaseException | None) -> None:
            with self._state:
                if each.call is not sent:
                    return  # it was sent again, or abandoned
                if error is not None and self._failure is None and self._repeating:
                    self._lose(str(error), attempt=attempt)
                    return
                each.call = None
                each.completed += error is None
            each.complete(error)

        sent = replace(call, segment=each.place, round=each.round, done=ended)
        each.call = sent
        each.link.start(sent)

    # Losses.

    def _lose(self, reason: str, *, attempt: int) -> None:
        with self._state:
            if not self._repeating or self._shut:
                self._fail(reason, attempt=attempt)
                return
            if self._failure is not None or attempt != self._attempt:
                return
            if self._loss is not None and self._loss[0] == attempt:
                return
            alone = self._loss is None
            self._loss = attempt, reason if self._loss is None else self._loss[1]
        self._end_links(reason, lost=True)
        if alone:
            threading.Thread(target=self._go_on, name="pace.losses", daemon=True).start()

    def _go_on(self) -> None:
        """Connect again and repeat what is missing, until nothing more is lost; runs in its own thread."""
        try:
            while self._loss is not None and self._failure is None:
                self._repeat()
        except Exception as error:  # any error is passed on to waiting threads
            assert self._loss is not None
            self._fail(f"{self._loss[1]}; {error}")
        finally:
            with self._state:
                self._loss = None
                self._changed.notify_all()

    def _repeat(self) -> None:
        said = self._relink(self._gather_after_loss, self._say_progress)
        with self._state:
            # Ranks that are ahead wait in the same call for this rank.
            newest = max(each["prepared"] for each in said)
            self._changed.wait_for(
                lambda: self._num_prepared >= newest or self._failure is not None, self._timeout_s
            )
            if self._failure is not None or self._loss is None:
                return
            if self._loss[0] == self._attempt:
                self._end_links(self._loss[1], lost=True)  # that was before these links were known
                return
            self._announce()
            owners = self._find_owners([each["segments"] for each in said])
            self._loss = None
            for name, each in self._exchanges.items():
                if name in owners:
                    self._make_up(each, owners[name])
                elif each.call is not None:
                    self._send(each)

    def _gather_after_loss(self, words: bytes) -> list[bytes]:
        try:
            return self._gather_over(self._other_groups["losses"], words)
        except CommunicationFailed as error:
            raise CommunicationFailed("a server was lost, and not every rank answered to go on") from error

    def _say_progress(self) -> dict[str, Any]:
        with self._state:
            return {
                "prepared": self._num_prepared,
                "segments": {name: asdict(each.progress) for name, each in self._exchanges.items()},
            }

    def _find_owners(self, ranks: Sequence[dict[str, Any]]) -> dict[str, ChunkOwners]:
        if any(each.keys() != self._exchanges.keys() for each in ranks):
            return {}  # a new plan has just begun, so no rank lacks anything of the previous one
        owners = {
            name: find_owners([SegmentProgress(**each[name]) for each in ranks], exchange.num_chunks)
            for name, exchange in self._exchanges.items()
        }
        return {name: found for name, found in owners.items() if found is not None}

    def _make_up(self, each: SegmentExchange, owners: ChunkOwners) -> None:
        """Push this rank's part of a sum that other ranks lack; call it with the lock held."""
        mine, dtype = owners.chunks[self.rank], each.served.dtype
        if each.completed < owners.due:
            assert each.call is not None
            add_nothing(each.call.memory, dtype, owners.all_chunks & ~mine, CHUNK_BYTES)
            each.call = replace(each.call, runs=None)  # some of it is a sum now
            self._send(each)
            return
        assert each.received is not None
        given = Flat.zeros(each.served.size_bytes, dtype).memory
        add_nothing(given, dtype, owners.all_chunks & ~mine, CHUNK_BYTES)
        copy_chunks(given, each.received, mine, CHUNK_BYTES)
        each.helping = True
        each.round += 1
        attempt = self._attempt

        def helped(error: BaseException | None) -> None:
            with self._state:
                if attempt != self._attempt:
                    return
                if error is not None:
                    self._lose(str(error), attempt=attempt)
                    return
                each.helping = False
                if each.call is not None and self._loss is None:
                    self._send(each)

        each.link.start(PushPullCall(segment=each.place, round=each.round, memory=given, done=helped))

    def _fail(self, reason: str, *, attempt: int | None = None) -> None:
        super()._fail(reason, attempt=attempt)
        if self._failure is None:
            return
        with self._state:
            given_up = [each for each in self._exchanges.values() if each.call is not None]
            for each in given_up:
                each.call = None
            self._changed.notify_all()
        for each in given_up:
            each.complete(CommunicationFailed(self._failure))

    def close(self, *, failed: bool) -> None:
        """Give other ranks what they lack after a loss, then end; see ``LinkedTransport``."""
        if not failed and not self._shut:
            with self._state:
                self._changed.wait_for(lambda: self._loss is None, self._timeout_s)
        super().close(failed=failed)
