"""Parameter servers as a transport: a segment is pushed, summed by its server, and pulled.

Control messages, signs of life and the start use torch.distributed, as for all-reduces. All ranks open their
links to the servers together, and open them again after one was lost. If servers are not colocated, every
rank keeps what it has pushed until it has the sum, and each sum until it has the next one. So after a loss
all ranks connect to the remaining servers and repeat what is missing (``round_repair``). For the engine the
exchange only takes longer.
"""

import datetime
import json
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pace.documents.push_pull import PushPull
from pace.errors import CommunicationFailed, InvalidOptions, PaceError
from pace.runtime.event_log import log
from pace.runtime.transports.gloo import GlooTransport
from pace.runtime.transports.runs import Runs
from pace.runtime.transports.transport import After, Done, SegmentCall, Sequencing
from pace.solver.least_bytes import least_bytes_servers
from pace.wire.addresses import ServerAddress, parse_address
from pace.wire.frames import CHUNK_BYTES, MIN_PARTITION_BYTES, FrameKind
from pace.wire.handshake import Greeting
from pace.wire.streams import NOTSENT_BYTES
from pace_servers.runtime.arithmetic import Flat
from pace_servers.runtime.layout import Layout, memory_of, segment_of
from pace_servers.runtime.link import PushPullCall, ServerLink
from pace_servers.runtime.measure import TimedExchanges, evaluate, time_exchanges
from pace_servers.runtime.options import Mixed, ParameterServers
from pace_servers.runtime.round_repair import (
    ChunkOwners,
    SegmentExchange,
    SegmentProgress,
    add_nothing,
    copy_chunks,
    find_owners,
)
from pace_servers.runtime.server import Server

_MOST_MEASURED_BYTES = 32 << 20
_MEASURED_TIMES = 3

# How long a silent process counts as alive: its interpreter may be blocked for a second.
_LONGEST_SILENCE_S = 30.0
_SHORTEST_SILENCE_S = 1.25

# How long, in seconds, a lost server may take to answer again before ranks go on without it.
_RETURN_S = 5.0

Gather = Callable[[bytes], list[bytes]]


class PushPullTransport(GlooTransport):
    """Sums tensors in the host's memory on parameter servers, one of them in every rank if colocated.

    Segments are matched by their number in the plan, so ranks may push in any order.

    Parameters
    ----------
    complete
        Returns the user's options with defaults filled in. If it raises on one rank, all ranks raise.
    notsent_bytes
        How many bytes the kernel may hold unsent for a server: the credit of a link.

    Attributes
    ----------
    serve_on_s
        How long this rank's server goes on for other ranks after this rank has left, in seconds.

    Raises
    ------
    InvalidOptions
        On every rank, if arguments are wrong on one rank or differ.
    CommunicationFailed
        On every rank, if one rank cannot reach a server.
    """

    sequencing: Sequencing = "keyed"
    has_halves = False
    takes_runs = True
    # Whether rounds are repeated after a loss, if servers are not colocated.
    repeats = True

    # What the testbed exchanges to run other systems' policies over the same wire.
    link_type: type[ServerLink] = ServerLink
    server_type: type[Server] = Server

    def __init__(
        self,
        complete: Callable[[], ParameterServers],
        *,
        timeout_s: float,
        process_group: dist.ProcessGroup | None = None,
        notsent_bytes: int = NOTSENT_BYTES,
    ) -> None:
        self._exchanges: dict[str, SegmentExchange] = {}
        self._prepared: tuple[Sequence[SegmentCall], dict[str, Any]] = (), {}
        self._num_prepared = 0
        self._repeating = False
        # The attempt in which a link was lost, and the first reason; None without a loss.
        self._loss: tuple[int, str] | None = None
        self._state = threading.RLock()
        self._changed = threading.Condition(self._state)
        self._failure: str | None = None
        self._attempt = 0
        self._links: list[ServerLink] = []
        self._server: Server | None = None
        self._shut = False
        self._some_lost = False
        self.serve_on_s = 0.0
        self._timeout_s = timeout_s
        self._silence_s = min(max(timeout_s / 4, _SHORTEST_SILENCE_S), _LONGEST_SILENCE_S)
        super().__init__(timeout_s=timeout_s, process_group=process_group)
        self._notsent_bytes = notsent_bytes
        try:
            self._open(complete)
        except BaseException as error:
            told = isinstance(error, PaceError) and not isinstance(error, CommunicationFailed)
            if self.peers is not None and told:
                self.peers.close(type(error).__name__)
            self.close(failed=not told)
            if self.peers is not None:
                if not told:
                    self.peers.linger()
                self.peers.release()
            raise

    # Links.

    @property
    def other_groups(self) -> dict[str, datetime.timedelta]:
        """The process group in which ranks meet after a loss. Its time-out is that of silent ranks."""
        return {"losses": datetime.timedelta(seconds=self._silence_s)}

    def _open(self, complete: Callable[[], ParameterServers]) -> None:
        options: ParameterServers | None = None
        mine: dict[str, Any] = {}
        try:
            options = complete()
            mine = {"servers": options.shown}
            if self.rank == 0:
                mine["secret"] = secrets.token_hex(16)
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            mine = {"servers": None, "error": str(error) or type(error).__name__}
        all_ = self._agree(mine)
        assert options is not None
        for rank, each in enumerate(all_):
            if each["servers"] != all_[0]["servers"]:
                raise InvalidOptions(
                    f"the arguments differ between ranks: {all_[0]['servers']} on rank 0 and"
                    f" {each['servers']} on rank {rank}"
                )
        self.deterministic = options.deterministic
        self._paced_by_user = options.pacing_bytes_per_s is not None
        self._take_options(options)
        # Use a token over loopback too, as other users of the machine are not workers of this job.
        self._job: str = all_[0]["secret"]
        self._options = options
        self._token = options.token or (self._job if options.servers == "colocated" else None)
        self._known = self._addresses(options)
        mine = {}
        try:
            for number in range(len(self._known)):
                self._links.append(self._link(number, self._timeout_s))
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            mine = {"error": str(error)}
        self.num_servers = len(self._known)
        self._agree(mine, CommunicationFailed)

    def _take_options(self, options: ParameterServers) -> None:
        """Store the options that all ranks agreed on."""

    def _agree(self, mine: dict[str, Any], kind: type[PaceError] = InvalidOptions) -> list[dict[str, Any]]:
        """Gather the statements of all ranks; all raise the same error if one rank reports an error."""
        replies: list[dict[str, Any]] = [json.loads(each) for each in self.gather(json.dumps(mine).encode())]
        other = next(
            (rank for rank, each in enumerate(replies) if "servers" in mine and "servers" not in each), None
        )
        if other is not None:
            raise InvalidOptions(
                f"the arguments differ between ranks: communication of rank {other} is of another kind than"
                f" that of rank {self.rank}"
            )
        errors = {rank: each["error"] for rank, each in enumerate(replies) if "error" in each}
        if errors:
            alike = len(errors) == self.size and len(set(errors.values())) == 1
            if alike:
                raise kind(next(iter(errors.values())))
            raise kind("; ".join(f"rank {rank}: {error}" for rank, error in list(errors.items())[:5]))
        return replies

    def _addresses(self, options: ParameterServers) -> list[ServerAddress]:
        if not isinstance(options.servers, str):
            assert options.servers is not None  # complete
            return [
                parse_address(place, f"server {number} ({place})")
                for number, place in enumerate(options.servers)
            ]
        mine: dict[str, Any] = {}
        try:
            assert options.host is not None  # complete
            self._server = self.server_type(options.host, workers=self.size, token=self._token)
            mine = {"host": options.host, "port": self._server.port}
        except (PaceError, OSError) as error:
            mine = {"error": str(error)}
        return [
            ServerAddress(host=each["host"], port=each["port"], name=f"the server of rank {rank}")
            for rank, each in enumerate(self._agree(mine))
        ]

    def _link(self, number: int, within_s: float) -> ServerLink:
        own = self._server is not None and number == self.rank
        options, attempt = self._options, self._attempt
        unpaced = own or options.pacing_bytes_per_s == math.inf
        pacing = None if unpaced else options.pacing_bytes_per_s
        greeting = Greeting(
            job=f"{self._job}-{attempt}" if attempt else self._job,
            rank=self.rank,
            size=self.size,
            silence_s=self._silence_s,
            pacing_bytes_per_s=pacing,
        )
        return self.link_type(
            self._known[number],
            greeting,
            token=self._token,
            on_failure=partial(self._fail, attempt=attempt),
            on_loss=partial(self._lose, attempt=attempt),
            within_s=within_s,
            pacing_bytes_per_s=pacing,
            ssl_context=options.ssl_context,
            notsent_bytes=self._notsent_bytes,
        )

    def _relink(
        self, gather: Gather, say: Callable[[], dict[str, Any]], asked: Sequence[bytes] | None = None
    ) -> list[dict[str, Any]]:
        """After a failure, connect again to the servers that answer all ranks; every rank must call it.

        Parameters
        ----------
        gather
            Gives every rank's payload to all ranks.
        say
            Returns additional data of this rank; called when nothing is in flight any more.
        asked
            The payloads of all ranks, if they were gathered in another call before.

        Returns
        -------
        list of dict
            The data of all ranks; ``lost`` names the servers to which the rank's connection was lost.

        Raises
        ------
        CommunicationFailed
            If no server is left, or a rank is gone.
        """
        for link in self._links:
            link.close()
        mine = say() | {"lost": [link.address.name for link in self._links if link.gone or link.left]}
        words = gather(json.dumps(mine).encode()) if asked is None else asked
        # A rank that was asked in a gathering of its own says below what it lost.
        said: list[dict[str, Any]] = [json.loads(each) if each else {"lost": []} for each in words]
        doubted = set().union(*(each["lost"] for each in said))
        with self._state:
            self._attempt += 1
            self._links = []
        found: dict[str, ServerLink] = {}
        reasons: dict[str, str] = {}
        for number, address in enumerate(self._known):
            within_s = min(_RETURN_S, self._silence_s) if address.name in doubted else self._silence_s
            try:
                found[address.name] = self._link(number, within_s)
            except (CommunicationFailed, OSError) as error:
                reasons[address.name] = str(error)
        answers = gather(json.dumps({"lost": mine["lost"], "away": reasons}).encode())
        lost: dict[str, str] = {}
        for each, answer in zip(said, map(json.loads, answers), strict=True):
            each["lost"] = answer["lost"]
            lost |= answer["away"]
        doubted = set().union(*(each["lost"] for each in said))
        for name, link in found.items():
            if name in lost:
                link.disown()
                link.abort(f"not every rank reaches this server: {lost[name]}")
                link.close()
        self._known = [address for address in self._known if address.name not in lost]
        self._links = [found[address.name] for address in self._known]
        self.num_servers = len(self._links)
        self._some_lost = self._some_lost or bool(lost)
        if self.rank == 0:
            log.warning(
                "pace.server_links_changed",
                lost=sorted(lost),
                back=sorted(doubted - lost.keys()),
                left=[address.name for address in self._known],
            )
        if not self._links:
            raise CommunicationFailed("; ".join(lost.values()))
        return said

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

    def measure_exchange(self, size_bytes: int) -> PushPull | None:
        """Measure what pushes and pulls of all ranks at once cost; every rank alike, with nothing in flight.

        It assumes that links are equally fast on all hosts. None if segments are also all-reduced.

        Raises
        ------
        CommunicationFailed
            If a server or a rank is gone.
        """
        if self.sequencing != "keyed":
            return None
        with self._state:
            self._repeating = False  # exchanges of the measurement are not repeated
        times = time_exchanges(
            self._links,
            size_bytes=min(size_bytes, _MOST_MEASURED_BYTES),
            repeats=_MEASURED_TIMES,
            within_s=self._timeout_s,
            meet=self._meet,
        )
        mine = [times.small_s, times.large_s, times.parts_s]
        all_ = [json.loads(each) for each in self.gather(json.dumps(mine).encode())]
        slowest = [[max(column) for column in zip(*rows, strict=True)] for rows in zip(*all_, strict=True)]
        found = evaluate(TimedExchanges(times.share_bytes, *slowest), self.num_servers)
        servers, colocated = self.num_servers, self._server is not None
        # The rate with which the cost document gives this time for each byte.
        busy = (servers + self.size - 2) / servers if colocated else max(1.0, self.size / servers)
        self.prepare(self._prepared[0], **self._prepared[1])
        return PushPull(
            servers=servers,
            colocated=colocated,
            worker_bytes_per_s=busy / found.seconds_per_byte,
            partition_s=found.partition_s,
            round_trip_s=found.round_trip_s,
            min_partition_bytes=MIN_PARTITION_BYTES,
        )

    # Segments.

    def allreduce(
        self,
        segment: torch.Tensor,
        name: str,
        done: Done,
        after: After | None = None,
        runs: Runs | None = None,
    ) -> Any:
        """Start to push, sum and pull a segment; see ``Transport``."""
        if name not in self._exchanges:  # what is all-reduced, or measured and in no plan
            return super().allreduce(segment, name, done, after)
        self._start(segment, name, FrameKind.PUSH, done, after, runs)
        return None

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
        with self._state:
            # Ignore failures of connections that were abandoned before.
            first = self._failure is None and attempt in (None, self._attempt)
            if first:
                self._failure = reason
        if first:
            self._end_links(reason, lost=False)
        if self._failure is None:
            return
        with self._state:
            given_up = [each for each in self._exchanges.values() if each.call is not None]
            for each in given_up:
                each.call = None
            self._changed.notify_all()
        for each in given_up:
            each.complete(CommunicationFailed(self._failure))

    def _end_links(self, reason: str, *, lost: bool) -> None:
        # The other servers pass the reason on, so that other ranks do not blame this one.
        for link in list(self._links):
            link.abort(reason, lost=lost)
        if self._server is not None:
            for session in list(self._server.sessions.values()):
                session.abort(reason, lost=lost)

    def close(self, *, failed: bool) -> None:
        """Give other ranks what they lack after a loss; end links and this rank's server, then the rest."""
        if not self._shut:
            if not failed:
                with self._state:
                    self._changed.wait_for(lambda: self._loss is None, self._timeout_s)
            self._shut = True
            if failed or self._failure is not None:
                self._fail(f"rank {self.rank} has given up")
            for link in self._links:
                link.finish()
            for link in self._links:
                link.close()
            if self._server is not None:
                if self._failure is None:
                    self._server.wait_for_ends(self.serve_on_s)
                self._server.close(reason=self._failure)
        super().close(failed=failed)


class MixedTransport(PushPullTransport):
    """Sums some gradients on parameter servers and all-reduces the others, in one round.

    All-reduces have the same order on all ranks. Pushed segments are matched by their numbers.
    """

    sequencing: Sequencing = "decision"

    def _take_options(self, options: ParameterServers) -> None:
        assert isinstance(options, Mixed)
        self.pushed = frozenset(options.pushed or ())
