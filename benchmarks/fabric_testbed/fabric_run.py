"""The fabric itself: a scheduler, a server and a daemon on each host, each a process, and their workers."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.fabric_commits import judged, random_update
from benchmarks.fabric_testbed.setting import (
    FULL_BYTES_PER_S,
    ChangingLinks,
    Trained,
    host_computations,
    sleep_until,
)
from benchmarks.testbed.hosts import Host
from benchmarks.testbed.processes import Answer, ranks
from pace.documents.fabric.network import FabricNetwork
from pace.documents.fabric.scenario import FabricScenario
from pace.runtime.addresses import ServerAddress
from pace.runtime.fabric.client import FabricClient
from pace.runtime.fabric.commit_log import LoggedCommit, read_log
from pace.runtime.fabric.daemon import HostDaemon
from pace.runtime.fabric.held_model import HeldModel
from pace.runtime.fabric.scheduling.link_rates import MeasuredState
from pace.runtime.fabric.scheduling.scheduler import FabricScheduler
from pace.runtime.fabric.scheduling.scheduler_options import SchedulerOptions
from pace.runtime.fabric.scheduling.warm_up import warm_up
from pace.simulation.fabric.draws import draw_links, rates_at

_TOKEN = "secret"
_SCHEDULER, _DAEMON = 7080, 7081
NetworkKnowledge = Literal["measured", "oracle"]


class DrawnRates:
    """What the links were drawn to, some time ago; full rates before the run."""

    def __init__(self, scenario: FabricScenario, lag_s: float) -> None:
        self.name = f"oracle, {lag_s:g} s late"
        self._links, self._lag_s = draw_links(scenario), lag_s
        names = [f"h{machine}" for machine in range(scenario.machines)]
        self._number = {name: place for place, name in enumerate([*names, "server"])}
        self.began_s = time.monotonic()

    def rates(self, host: str, _now_s: float) -> tuple[float, float]:
        """Return the drawn rates, up and down."""
        rates = rates_at(self._links, time.monotonic() - self.began_s - self._lag_s)
        link = 2 * self._number[host]
        return float(rates[link]), float(rates[link + 1])

    def observe(self, source: str, target: str, size_bytes: int, seconds: float, now_s: float) -> None:
        """Take no notice."""


def train_over_fabric(
    scenario: FabricScenario,
    made: Sequence[Host],
    folder: Path,
    knowledge: NetworkKnowledge = "measured",
    *,
    lag_s: float = 0.0,
) -> Trained:
    """Train with the workers of a host summed first.

    Parameters
    ----------
    made
        The scheduler's host, the server's, and the machines.
    """
    schedulers, servers, on = made[:1], made[1:2], made[2:]
    warm_up()  # before ranks are forked: once for all
    links = ChangingLinks(scenario, on)
    links.shape(0.0)
    place = ServerAddress(host=schedulers[0].address, port=_SCHEDULER, name="scheduler")
    with contextlib.ExitStack() as stack:

        def start(name: str, at: Sequence[Host], main: Any, *arguments: Any) -> Any:
            return stack.enter_context(ranks(name, at, main, *arguments, undisturbed=False))

        planning = start("scheduler", schedulers, _schedule, scenario, place, folder, knowledge, lag_s)
        serving = start("server", servers, _serve, scenario, servers, place, folder)
        keeping = start("daemon", on, _keep, on, place)
        workers = start("worker", on, _work, scenario, on)
        with serving.awake(), keeping.awake():
            planning.ask("wait", len(on) + 1)
            workers.ask("connect")
            began = time.monotonic() + 0.5
            planning.ask("begin", began)
            with planning.awake():
                links.start(began)
                try:
                    workers.ask("run", began, timeout_s=scenario.duration_s + 120)
                finally:
                    links.stop()
            status, origin = planning.ask("status")[0]
    numbers = scenario.update_bytes // 4
    bound = scenario.delay_bound // scenario.workers_per_machine
    first = np.zeros(numbers, dtype=np.float32)
    facts = judged(folder, first, bound, status, scenario.duration_s)
    commits = [
        (line.arrived_s + origin - began, len(line.members) * scenario.workers_per_machine)
        for line in read_log(folder / "server.jsonl")
        if isinstance(line, LoggedCommit)
    ]
    return Trained(commits=[each for each in commits if each[0] <= scenario.duration_s], facts=facts)


def _schedule(
    _rank: int,
    scenario: FabricScenario,
    place: ServerAddress,
    folder: Path,
    knowledge: NetworkKnowledge,
    lag_s: float,
) -> Answer:
    oracle = DrawnRates(scenario, lag_s) if knowledge == "oracle" else None
    names = [*(f"h{machine}" for machine in range(scenario.machines)), "server"]
    full = {"up_bytes_per_s": FULL_BYTES_PER_S, "down_bytes_per_s": FULL_BYTES_PER_S}
    nominal = FabricNetwork.model_validate(
        {"hosts": [{"name": name, **full} for name in names], "server": "server"}
    )
    options = SchedulerOptions(
        delay_bound=scenario.delay_bound // scenario.workers_per_machine,
        tick_s=scenario.tick_s,
        transfer_log=folder / "transfers.jsonl",
    )
    running = FabricScheduler(
        options, bind=(place.host, place.port), state=oracle or MeasuredState(nominal), token=_TOKEN
    )
    origin = time.monotonic() - running.known.now()

    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        if request == "wait":
            while len(running.status()["hosts"]) < arguments[0]:
                time.sleep(0.05)
        elif request == "begin" and oracle is not None:
            (oracle.began_s,) = arguments
        return running.status(), origin

    return answer


def _serve(
    _rank: int, scenario: FabricScenario, on: Sequence[Host], place: ServerAddress, folder: Path
) -> Answer:
    first = np.zeros(scenario.update_bytes // 4, dtype=np.float32)
    return _daemon("server", on[0], place, HeldModel(first, log=folder / "server.jsonl"))


def _keep(rank: int, on: Sequence[Host], place: ServerAddress) -> Answer:
    return _daemon(f"h{rank}", on[rank], place, None)


def _daemon(name: str, host: Host, place: ServerAddress, model: Any) -> Answer:
    running = HostDaemon(name, place, bind=(host.address, _DAEMON), model=model, token=_TOKEN)
    return lambda _request, _arguments: running.address


def _work(rank: int, scenario: FabricScenario, on: Sequence[Host]) -> Answer:
    clients: list[FabricClient] = []
    numbers = scenario.update_bytes // 4

    def run(began_s: float) -> None:
        compute, worker, number, version = host_computations(scenario, rank), clients[0], 0, 0
        sleep_until(began_s)
        while True:
            asleep = time.monotonic() + compute.draw_s()
            number += 1
            update = random_update(f"w{rank}", number, numbers)  # computed while it "computes"
            sleep_until(asleep)
            ended = worker.push(update, version).wait()
            if time.monotonic() - began_s > scenario.duration_s:
                return
            version = worker.get(at_least=ended.version or 0).version

    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        if request == "connect":
            address = ServerAddress(host=on[rank].address, port=_DAEMON, name="daemon")
            clients.append(FabricClient(address, worker=f"w{rank}", token=_TOKEN))
            return
        run(*arguments)

    return answer
