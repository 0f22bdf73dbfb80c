"""Segments on their way over links to servers, and rounds that outlive the loss of one.

Where servers are not colocated, every rank keeps what it has pushed until its sum is back, and each sum until
the next one is. So after a loss all ranks link up with the servers that are left, and repeat what is missing
(``round_repair``). The engine only sees that it takes longer.
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
    """Exchanges segments, again where something was lost; see ``LinkedTransport`` for the arguments."""

    # Whether rounds are repeated after a loss, where servers are not colocated.
    repeats = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._exchanges: dict[str, SegmentExchange] = {}
        self._prepared: tuple[Sequence[SegmentCall], dict[str, Any]] = (), {}
        self._num_prepared = 0
        self._repeating = False
        # The attempt at whose links something was lost, and the first reason; None while all is well.
        self._loss: tuple[int, str] | None = None
        self._state = threading.RLock()
        self._changed = threading.Condition(self._state)
        super().__init__(*arguments, **named)

    def reopen(self, said: Sequence[bytes] | None = None) -> None:
        """After a failure, link up anew with the servers that answer all ranks; every rank must call it.

        Nothing is prepared then.

        Parameters
        ----------
        said
            What the ranks said in a gathering in which others called this and this rank did not yet.

        Raises
        ------
        CommunicationFailed
            On every rank, when no server is left, or a rank is gone.
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
            How fast connections send by the plan; what the user said counts more.
        weights
            Whether servers hold weights, and not sums.
        staleness, seeder
            See ``Layout``.
        """
        keeps = self.repeats and self._server is None and not weights
        if self._repeating and keeps:
            self._meet()  # nobody needs the sums before these any more
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
        """Give a server its first weights; one rank alone does."""
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
        """Give a segment's call to its link; with the lock held."""
        call, attempt = each.call, self._attempt
        assert call is not None
        each.round += call.kind is FrameKind.PUSH

        def ended(error: BaseException | None) -> None:
            with self._state:
                if each.call is not sent:
                    return  # it was sent again, or given up
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
        """Link up anew and repeat what is missing, until nothing more is lost; in a thread of its own."""
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
            # Ranks that are ahead wait for this one in the same call.
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
            raise CommunicationFailed("not every rank is there to go on") from error

    def _say_progress(self) -> dict[str, Any]:
        with self._state:
            return {
                "prepared": self._num_prepared,
                "segments": {name: asdict(each.progress) for name, each in self._exchanges.items()},
            }

    def _find_owners(self, ranks: Sequence[dict[str, Any]]) -> dict[str, ChunkOwners]:
        if any(each.keys() != self._exchanges.keys() for each in ranks):
            return {}  # a plan was just taken up, so nobody lacks anything of the one before
        owners = {
            name: find_owners([SegmentProgress(**each[name]) for each in ranks], exchange.num_chunks)
            for name, exchange in self._exchanges.items()
        }
        return {name: found for name, found in owners.items() if found is not None}

    def _make_up(self, each: SegmentExchange, owners: ChunkOwners) -> None:
        """Push what this rank gives of a sum that others lack; with the lock held."""
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
        """Help ranks that lack something after a loss, then end; see ``LinkedTransport``."""
        if not failed and not self._shut:
            with self._state:
                self._changed.wait_for(lambda: self._loss is None, self._timeout_s)
        super().close(failed=failed)
