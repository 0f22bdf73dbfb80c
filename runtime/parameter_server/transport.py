"""Parameter servers as a transport: a segment's sum is its push, the servers' addition, and its pull.

Control messages, signs of life and the start go over torch.distributed, as for all-reduces.
"""

import json
import math
import secrets
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pace.documents.push_pull import PushPull
from pace.errors import CommunicationFailed, InvalidOptions, PaceError
from pace.runtime.event_log import log
from pace.runtime.parameter_server.handshake import Greeting
from pace.runtime.parameter_server.layout import Layout, memory_of, segment_of
from pace.runtime.parameter_server.link import PushPullCall, ServerAddress, ServerLink
from pace.runtime.parameter_server.measure import TimedExchanges, evaluate, time_exchanges
from pace.runtime.parameter_server.options import ServerOptions, own_host, parse_address
from pace.runtime.parameter_server.server import Server
from pace.runtime.parameter_server.streams import NOTSENT_BYTES
from pace.runtime.parameter_server.wire import CHUNK_BYTES, FrameKind
from pace.runtime.transports.gloo import GlooTransport
from pace.runtime.transports.transport import After, Done, SegmentCall, Sequencing
from pace.solver.least_bytes import least_bytes_servers

# A process whose interpreter is held for a second is not dead, so silence is not taken for death at once.
_LONGEST_SILENCE_S = 30.0
_SHORTEST_SILENCE_S = 1.25

_MOST_MEASURED_BYTES = 32 << 20
_MEASURED_TIMES = 3


class PushPullTransport(GlooTransport):
    """Sums tensors in the host's memory on parameter servers.

    Segments are matched by their number in the plan, so ranks may push in any order.

    Parameters
    ----------
    prepare
        Checks the user's arguments; what it raises on one rank, all ranks raise.
    notsent_bytes
        How much the kernel may hold unsent for a server: the credit of a link.

    Raises
    ------
    InvalidOptions
        On every rank, when arguments are wrong on one, or differ.
    CommunicationFailed
        On every rank, when one cannot reach a server.
    """

    sequencing: Sequencing = "keyed"
    has_halves = False
    # What the testbed exchanges to run other systems' policies over the same wire.
    link_type: type[ServerLink] = ServerLink
    server_type: type[Server] = Server

    def __init__(
        self,
        prepare: Any,
        *,
        timeout_s: float,
        process_group: dist.ProcessGroup | None = None,
        notsent_bytes: int = NOTSENT_BYTES,
    ) -> None:
        self._failure: str | None = None
        self._attempt = 0
        self._state = threading.Lock()
        self._links: list[ServerLink] = []
        self._server: Server | None = None
        self._places: dict[str, tuple[ServerLink, int]] = {}
        self._rounds: dict[str, int] = {}
        self._prepared: tuple[list[SegmentCall], dict[str, Any]] = [], {}
        self._shut = False
        # How long this rank's server goes on for others once this rank has left.
        self.serve_on_s = 0.0
        super().__init__(timeout_s=timeout_s, process_group=process_group)
        self._timeout_s = timeout_s
        self._notsent_bytes = notsent_bytes
        try:
            self._open(prepare)
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

    def _open(self, prepare: Any) -> None:
        options: ServerOptions | None = None
        mine: dict[str, Any] = {}
        try:
            options = prepare()
            assert options is not None
            mine = {"backend": "servers", "options": options.shown}
            if self.rank == 0:
                mine["secret"] = secrets.token_hex(16)
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            mine = {"backend": "servers", "error": str(error) or type(error).__name__}
        all_ = self._agree(mine)
        assert options is not None
        for rank, each in enumerate(all_):
            if each["options"] != all_[0]["options"]:
                raise InvalidOptions(
                    f"the arguments differ between ranks: {all_[0]['options']} on rank 0 and"
                    f" {each['options']} on rank {rank}"
                )
        self.deterministic = options.deterministic
        self._paced_by_user = options.pacing_bytes_per_s is not None
        self._take_options(options)
        # Over loopback too: other users of the machine are no workers of this job.
        job: str = all_[0]["secret"]
        token = options.token or (job if options.servers == "colocated" else None)
        addresses = self._addresses(options, token)
        self._known = addresses, options, token, job
        self._link_up_together(addresses, options, token, job)

    def _link_up_together(
        self, addresses: Sequence[ServerAddress], options: ServerOptions, token: str | None, job: str
    ) -> None:
        mine: dict[str, Any] = {}
        try:
            self._link_up(addresses, options, token, job)
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            mine = {"error": str(error)}
        self._agree(mine, CommunicationFailed)

    def reopen(self) -> None:
        """After a failure, connect anew to the servers that no rank has lost; every rank must call it.

        Nothing is prepared then.

        Raises
        ------
        CommunicationFailed
            On every rank, when no server was lost, or none is left, or a rank is gone.
        """
        addresses, options, token, job = self._known
        mine = [link.address.name for link in self._links if link.gone]
        all_ = [json.loads(each) for each in self.gather(json.dumps(mine).encode())]
        lost = set().union(*all_)
        left = [address for address in addresses if address.name not in lost]
        if not lost or not left or self._server is not None:
            raise CommunicationFailed(self._failure or "nothing was lost")
        for link in self._links:
            link.close()
        self._links, self._places = [], {}
        with self._state:
            self._attempt += 1
            self._failure = None
        self._known = left, options, token, job
        self._link_up_together(left, options, token, f"{job}-{self._attempt}")
        if self.rank == 0:
            log.warning("pace.servers_lost", lost=sorted(lost), left=[address.name for address in left])

    def _take_options(self, options: ServerOptions) -> None:
        """Learn what all ranks agree on."""

    def _agree(self, mine: dict[str, Any], kind: type[PaceError] = InvalidOptions) -> list[dict[str, Any]]:
        """Gather what ranks say; all raise alike where one says an error."""
        replies: list[dict[str, Any]] = [json.loads(each) for each in self.gather(json.dumps(mine).encode())]
        other = next(
            (rank for rank, each in enumerate(replies) if "backend" in mine and "backend" not in each), None
        )
        if other is not None:
            raise InvalidOptions(f"the arguments differ between ranks: rank {other} has another backend")
        errors = {rank: each["error"] for rank, each in enumerate(replies) if "error" in each}
        if errors:
            alike = len(errors) == self.size and len(set(errors.values())) == 1
            if alike:
                raise kind(next(iter(errors.values())))
            raise kind("; ".join(f"rank {rank}: {error}" for rank, error in list(errors.items())[:5]))
        return replies

    def _addresses(self, options: ServerOptions, token: str | None) -> list[ServerAddress]:
        if options.servers != "colocated":
            return [
                parse_address(place, f"server {number} ({place})")
                for number, place in enumerate(options.servers)
            ]
        mine: dict[str, Any] = {}
        try:
            host = own_host(options.token)
            self._server = self.server_type(host, workers=self.size, token=token)
            mine = {"host": host, "port": self._server.port}
        except (PaceError, OSError) as error:
            mine = {"error": str(error)}
        return [
            ServerAddress(host=each["host"], port=each["port"], name=f"the server of rank {rank}")
            for rank, each in enumerate(self._agree(mine))
        ]

    def _link_up(
        self, addresses: Sequence[ServerAddress], options: ServerOptions, token: str | None, job: str
    ) -> None:
        silence_s = min(max(self._timeout_s / 4, _SHORTEST_SILENCE_S), _LONGEST_SILENCE_S)
        for number, address in enumerate(addresses):
            own = self._server is not None and number == self.rank
            unpaced = own or options.pacing_bytes_per_s == math.inf
            pacing = None if unpaced else options.pacing_bytes_per_s
            greeting = Greeting(
                job=job, rank=self.rank, size=self.size, silence_s=silence_s, pacing_bytes_per_s=pacing
            )
            link = self.link_type(
                address,
                greeting,
                token=token,
                on_failure=partial(self._fail, attempt=self._attempt),
                within_s=self._timeout_s,
                pacing_bytes_per_s=pacing,
                ssl_context=options.ssl_context,
                notsent_bytes=self._notsent_bytes,
            )
            self._links.append(link)
        self.num_servers = len(self._links)

    def prepare(
        self,
        calls: Sequence[SegmentCall],
        *,
        pace_bytes_per_s: float | None = None,
        weights: bool = False,
        staleness: int | None = None,
        seeder: int = 0,
    ) -> None:
        """Place the segments of a plan on the servers; every rank calls it alike, with nothing under way.

        Parameters
        ----------
        pace_bytes_per_s
            How fast connections send by the plan; what the user said counts more.
        weights
            Whether servers hold weights, and not sums.
        staleness, seeder
            See ``Layout``.
        """
        how = {"pace_bytes_per_s": pace_bytes_per_s, "weights": weights, "staleness": staleness}
        how["seeder"] = seeder
        self._prepared = list(calls), how
        calls = [call for call in calls if call.pushed]
        segments = [segment_of(call.tensor, call.turn) for call in calls]
        placed = least_bytes_servers([segment.size_bytes for segment in segments], len(self._links))
        servers = [
            server if call.link is None else call.link for call, server in zip(calls, placed, strict=True)
        ]
        self._places, self._rounds = {}, {}
        for number, link in enumerate(self._links):
            held = [at for at, server in enumerate(servers) if server == number]
            layout = Layout(
                segments=tuple(segments[at] for at in held),
                purpose="weights" if weights else "sum",
                staleness=staleness,
                deterministic=self.deterministic,
                seeder=seeder,
                pace_bytes_per_s=None if self._paced_by_user else pace_bytes_per_s,
            )
            link.announce(self._announced(layout))
            for place, at in enumerate(held):
                self._places[calls[at].name] = link, place
                self._rounds[calls[at].name] = 0

    def _announced(self, layout: Layout) -> Layout:
        return layout

    def server_of(self, name: str) -> int:
        """Return the number of the server that a prepared segment is on."""
        return self._links.index(self._places[name][0])

    def measure_exchange(self, size_bytes: int) -> PushPull | None:
        """Measure what pushes and pulls of all ranks at once cost; every rank alike, with nothing under way.

        Links are taken to be equally fast on all hosts. None where segments are all-reduced too.

        Raises
        ------
        CommunicationFailed
            When a server or a rank is gone.
        """
        if self.sequencing != "keyed":
            return None
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
        # The rate with which the cost document has this time for each byte.
        busy = (servers + self.size - 2) / servers if colocated else max(1.0, self.size / servers)
        self.prepare(self._prepared[0], **self._prepared[1])
        return PushPull(
            servers=servers,
            colocated=colocated,
            worker_bytes_per_s=busy / found.seconds_per_byte,
            partition_s=found.partition_s,
            round_trip_s=found.round_trip_s,
            min_partition_bytes=CHUNK_BYTES,
        )

    def _meet(self) -> None:
        self.gather(b"")

    def allreduce(self, segment: torch.Tensor, name: str, done: Done, after: After | None = None) -> Any:
        """Start to push, sum and pull a segment; see ``Transport``."""
        if name not in self._places:  # what is measured, and in no plan
            return super().allreduce(segment, name, done, after)
        self._rounds[name] += 1
        self._start(segment, name, FrameKind.PUSH, done, after)
        return None

    def seed(self, segment: torch.Tensor, name: str, done: Done) -> None:
        """Give a server its first weights; one rank alone does."""
        self._start(segment, name, FrameKind.SEED, done, None)

    def _start(
        self, segment: torch.Tensor, name: str, kind: FrameKind, done: Done, after: After | None
    ) -> None:
        if self._failure is not None:
            raise CommunicationFailed(self._failure)

        def complete(error: BaseException | None) -> None:
            if error is None and after is not None:
                try:
                    after()
                except Exception as raised:  # whatever it is, waiting threads receive it
                    error = raised
            done(error)

        link, place = self._places[name]
        link.start(
            PushPullCall(
                segment=place, round=self._rounds[name], memory=memory_of(segment), done=complete, kind=kind
            )
        )

    def _fail(self, reason: str, *, attempt: int | None = None) -> None:
        with self._state:
            # Connections that were given up have nothing more to say.
            if self._failure is not None or attempt not in (None, self._attempt):
                return
            self._failure = reason
        # The other servers pass the reason on, so that nobody takes this rank for the culprit.
        for link in list(self._links):
            link.abort(reason)
        if self._server is not None:
            for session in list(self._server.sessions.values()):
                session.abort(reason)

    def close(self, *, failed: bool) -> None:
        """End links and this rank's server, then what ``GlooTransport`` closes."""
        if not self._shut:
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

    All-reduces keep to one order on all ranks; what is pushed is matched by its number.
    """

    sequencing: Sequencing = "decision"

    def _take_options(self, options: ServerOptions) -> None:
        self.pushed = options.pushed
