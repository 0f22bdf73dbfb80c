"""A transport's links to its servers: all ranks open them together, and open them again after one was lost.

``repeated_rounds`` and ``push_pull`` send segments over them.
"""

import datetime
import json
import math
import secrets
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist

from pace.errors import CommunicationFailed, InvalidOptions, PaceError
from pace.runtime.event_log import log
from pace.runtime.options import ParameterServers
from pace.runtime.servers.link import ServerLink
from pace.runtime.servers.server import Server
from pace.runtime.transports.gloo import GlooTransport
from pace.wire.addresses import ServerAddress, parse_address
from pace.wire.handshake import Greeting
from pace.wire.streams import NOTSENT_BYTES

# How long a silent process counts as alive: its interpreter may be blocked for a second.
_LONGEST_SILENCE_S = 30.0
_SHORTEST_SILENCE_S = 1.25

# How long, in seconds, a lost server may take to answer again before ranks go on without it.
_RETURN_S = 5.0

Gather = Callable[[bytes], list[bytes]]


class LinkedTransport(GlooTransport):
    """Links to parameter servers, and one server in every rank if they are colocated.

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

    _state: threading.RLock

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

    def _lose(self, reason: str, *, attempt: int) -> None:
        """Handle the loss of a connection without any other failure."""
        self._fail(reason, attempt=attempt)

    def _fail(self, reason: str, *, attempt: int | None = None) -> None:
        with self._state:
            # Ignore failures of connections that were abandoned before.
            if self._failure is not None or attempt not in (None, self._attempt):
                return
            self._failure = reason
        self._end_links(reason, lost=False)

    def _end_links(self, reason: str, *, lost: bool) -> None:
        # The other servers pass the reason on, so that other ranks do not blame this one.
        for link in list(self._links):
            link.abort(reason, lost=lost)
        if self._server is not None:
            for session in list(self._server.sessions.values()):
                session.abort(reason, lost=lost)

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
