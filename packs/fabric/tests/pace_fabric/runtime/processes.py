"""A fabric on this machine's loopback: some of it in processes that can be killed, the rest in this one."""

import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pace.wire.addresses import ServerAddress
from pace_fabric.documents.network import FabricHost, FabricNetwork
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.client_answers import UpdateTicket
from pace_fabric.runtime.commit_log import LoggedCommit, LogHead, Vector, read_log, replay
from pace_fabric.runtime.daemon import HostDaemon
from pace_fabric.runtime.held_model import HeldModel
from pace_fabric.runtime.scheduler_call import ask_status
from pace_fabric.runtime.scheduling.batch_planner import warm_up
from pace_fabric.runtime.scheduling.link_rates import DEFAULT_BYTES_PER_S, NetworkState, OracleState
from pace_fabric.runtime.scheduling.scheduler import FabricScheduler
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.shards import shard_range
from pace_fabric.runtime.update_records import NumberFormat
from tests.runtime.programs import ForkedProgram

TOKEN = "secret"
# Nothing here takes long, but the machine may be busy.
WITHIN_S = 200.0


def even_links() -> OracleState:
    """Return a state in which every link carries 1 Gb/s for ever: so do hosts that an oracle's network lacks.

    For tests of sums on the way. Whether these pay follows rates, and what is measured while other tests keep
    the cores busy says anything.
    """
    even = FabricHost(name="server", up_bytes_per_s=DEFAULT_BYTES_PER_S, down_bytes_per_s=DEFAULT_BYTES_PER_S)
    return OracleState(FabricNetwork(hosts=(even,), server="server"))


class Started(ForkedProgram):
    """A process of ``pace fabric``."""

    def __init__(self, *arguments: object) -> None:
        super().__init__("pace", "fabric", *arguments, environment={"PACE_FABRIC_TOKEN": TOKEN})
        self._address = ""

    @property
    def address(self) -> str:
        """Where it listens; waits until it does."""
        self._address = self._address or self.said("listening on ")
        return self._address


Member = Started | HostDaemon | FabricScheduler


class Fabric:
    """A scheduler, a server, perhaps a replica, and hosts h0, h1 and so on.

    Parameters
    ----------
    options
        Of ``pace fabric scheduler``.
    killable
        Members that run in a process of their own.
    without_server
        Start no server yet: what is pushed meanwhile is planned in one batch.
    state_s
        How often members in processes of their own save their model.
    tls
        For those that serve and for those that call; not for members in processes of their own.
    """

    def __init__(
        self,
        folder: Path,
        hosts: int,
        options: SchedulerOptions,
        *,
        killable: tuple[str, ...] = (),
        numbers: int = 1000,
        replica: bool = False,
        without_server: bool = False,
        state: NetworkState | None = None,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
        state_s: float = 0.0,
    ) -> None:
        assert tls is None or not killable
        self.serving = None if tls is None else tls[0]
        self.trusting = None if tls is None else tls[1]
        self.folder, self.options, self.killable, self.state = folder, options, killable, state
        self.state_s = state_s
        self.first: Vector = np.random.default_rng(0).normal(size=numbers).astype(np.float32)
        np.save(folder / "model.npy", self.first)
        self._random = np.random.default_rng(1)
        self.updates: dict[str, Vector] = {}
        self.members: dict[str, Member] = {}
        self.clients: list[FabricClient] = []
        warm_up()
        try:
            self.start_scheduler()
            holders = ([] if without_server else self.servers) + (["replica"] if replica else [])
            for name in [*holders, *(f"h{number}" for number in range(hosts))]:
                self.start(name)
            self.wait(lambda status: len(status["hosts"]) == hosts + len(holders))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Fabric":
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def place(self, name: str) -> ServerAddress:
        """Return where a member listens."""
        host, _, port = self.members[name].address.rpartition(":")
        return ServerAddress(host=host, port=int(port), name=name)

    def start_scheduler(self, bind: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        """Start a scheduler; a second one takes the place of the first."""
        if "scheduler" not in self.killable:
            self.members["scheduler"] = FabricScheduler(
                self.options, bind=bind, state=self.state, token=TOKEN, ssl_context=self.serving
            )
            return
        options = self.options
        arguments = ["--tick-s", f"{options.tick_s}", "--momentum", f"{options.momentum}"]
        assert options.divergence is None, "not for a scheduler that is killed"
        if options.delay_bound is not None:
            arguments += ["--delay-bound", f"{options.delay_bound}"]
        self.members["scheduler"] = Started("scheduler", "--bind", f"{bind[0]}:{bind[1]}", *arguments)

    @property
    def servers(self) -> list[str]:
        """Names of the servers: "server", or "server0" and so on where the model is split."""
        number = self.options.servers
        return ["server"] if number == 1 else [f"server{shard}" for shard in range(number)]

    def start(self, name: str) -> None:
        """Start a host."""
        holds, place = name in (*self.servers, "replica"), self.place("scheduler")
        shard = (self.servers.index(name), len(self.servers)) if name in self.servers else (0, 1)
        if name in self.killable:
            arguments = ["--name", name, "--scheduler", f"{place.host}:{place.port}", "--bind", "127.0.0.1:0"]
            if holds:
                arguments += ["--state", f"{self.folder / name}.state", "--state-s", f"{self.state_s}"]
                arguments += ["--model", f"{self.folder / 'model.npy'}", "--log", f"{self.folder / name}.log"]
                arguments += ["--replica"] if name == "replica" else ["--shard", f"{shard[0]}/{shard[1]}"]
            self.members[name] = Started("serve" if holds else "daemon", *arguments)
            return
        first, last = shard_range(len(self.first), *shard)
        log = self.folder / f"{name}.log"
        model = HeldModel(self.first[first:last].copy(), log=log) if holds else None
        self.members[name] = HostDaemon(
            name,
            place,
            model=model,
            replica=name == "replica",
            shard=shard,
            token=TOKEN,
            serving=self.serving,
            trusting=self.trusting,
        )

    def start_server(self, *, serve_as: NumberFormat = "float32") -> None:
        """Start a server in this process that serves models in a format."""
        model = HeldModel(self.first.copy(), log=self.folder / "server.log", serve_as=serve_as)
        self.members["server"] = HostDaemon("server", self.place("scheduler"), model=model, token=TOKEN)

    def kill(self, name: str) -> None:
        """Kill a member's process."""
        member = self.members.pop(name)
        assert isinstance(member, Started)
        member.close()

    def client(self, host: int, worker: str | None = None) -> FabricClient:
        """Return a worker on a host."""
        name = worker or f"w{host}"
        made = FabricClient(
            self.place(f"h{host}"), worker=name, token=TOKEN, timeout_s=WITHIN_S, ssl_context=self.trusting
        )
        self.clients.append(made)
        return made

    def push(self, client: FabricClient, version: int = 0, *, weight: float = 1.0) -> UpdateTicket:
        """Push a random update, which is kept for a replay."""
        numbers = len(self.first)
        update = self._random.normal(size=numbers).astype(np.float32)
        ticket = client.push(update, version, weight=weight)
        self.updates[ticket.update] = update
        return ticket

    def replayed(self, lines: Sequence[LogHead | LoggedCommit]) -> Vector:
        """Return the model that a log gives."""
        return replay(self.first, lines, self.updates.__getitem__)[0]

    def status(self) -> dict[str, Any]:
        """Return what the scheduler says."""
        return ask_status(self.place("scheduler"), token=TOKEN, timeout_s=WITHIN_S, ssl_context=self.trusting)

    def wait(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the scheduler's status fulfills a condition, and return it."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            found = self.status()
            if condition(found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def log(self, name: str = "server") -> list[LogHead | LoggedCommit]:
        """Return a commit log."""
        return list(read_log(self.folder / f"{name}.log"))

    def close(self) -> None:
        """End everything."""
        for client in self.clients:
            client.close()
        for member in self.members.values():
            member.close()
