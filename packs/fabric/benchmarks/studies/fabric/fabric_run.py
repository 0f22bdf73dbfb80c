"""The fabric itself: a scheduler, a server and a daemon on each host, each a process, and their workers."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.processes import Answer, ranks
from benchmarks.studies.fabric.setting import (
    FULL_BYTES_PER_S,
    ChangingLinks,
    Trained,
    host_computations,
    sleep_until,
)
from pace.wire.addresses import ServerAddress
from pace_fabric.documents.batch import DivergenceLimit
from pace_fabric.documents.network import FabricNetwork
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.commit_log import LoggedCommit, LogHead, Vector, read_log, replay, violations
from pace_fabric.runtime.daemon import HostDaemon
from pace_fabric.runtime.held_model import HeldModel
from pace_fabric.runtime.scheduling.batch_planner import warm_up
from pace_fabric.runtime.scheduling.link_rates import MeasuredState, SeenTransfer
from pace_fabric.runtime.scheduling.scheduler import FabricScheduler
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.update_records import worker_and_number
from pace_fabric.simulation.draws import draw_links, rates_at

_TOKEN = "secret"
_SCHEDULER, _DAEMON = 7080, 7081
_SLOW_SHARE = 0.3  # of the full rate: what Figure 8 calls a slow host


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricVariant:
    """Settings of one run of the fabric.

    Attributes
    ----------
    knowledge, lag_s
        Whether rates are measured or known from the draw, and how late.
    synchronous
        Whether a worker waits for the updates of all others.
    replica, patient
        How far the server may lead a replica (None: no replica), and whether the replica waits for half
        of that.
    kill_s
        When the server's process is killed; None for never.
    """

    knowledge: Literal["measured", "oracle"] = "measured"
    lag_s: float = 0.0
    synchronous: bool = False
    replica: DivergenceLimit | None = None
    patient: bool = False
    kill_s: float | None = None


class DrawnRates:
    """Rates of the links some time ago; full rates before the run."""

    def __init__(self, scenario: FabricScenario, lag_s: float) -> None:
        self.name = f"oracle, {lag_s:g} s late"
        self._links, self._lag_s = draw_links(scenario), lag_s
        names = [f"h{machine}" for machine in range(scenario.machines)]
        self._number = {name: place for place, name in enumerate([*names, "server", "replica"])}
        self.began_s = time.monotonic()

    def rates(self, host: str, _now_s: float) -> tuple[float, float]:
        """Return the drawn rates, up and down."""
        rates = rates_at(self._links, time.monotonic() - self.began_s - self._lag_s)
        link = 2 * self._number[host]
        return float(rates[link]), float(rates[link + 1])

    def observe(self, seen: SeenTransfer, now_s: float) -> None:
        """Take no notice."""

    def known_s(self, _host: str, _direction: str) -> float:
        """Return that no transfer needs to tell about a link."""
        return float("inf")


def train_over_fabric(
    scenario: FabricScenario,
    made: Sequence[Host],
    folder: Path,
    variant: FabricVariant,
) -> Trained:
    """Train with the workers of a host summed first.

    Parameters
    ----------
    made
        The scheduler's host, the server's, the machines, and one for a replica.
    """
    schedulers, servers, on = made[:1], made[1:2], made[2 : 2 + scenario.machines]
    replicas = [] if variant.replica is None else made[-1:]
    warm_up()  # before ranks are forked: once for all
    links = ChangingLinks(scenario, on)
    links.shape(0.0)
    place = ServerAddress(host=schedulers[0].address, port=_SCHEDULER, name="scheduler")
    with contextlib.ExitStack() as stack:

        def start(name: str, at: Sequence[Host], main: Any, *arguments: Any) -> Any:
            return stack.enter_context(ranks(name, at, main, *arguments, undisturbed=False))

        planning = start("scheduler", schedulers, _schedule, scenario, place, folder, variant)
        serving = start("server", servers, _serve, scenario, "server", servers, place, folder)
        following = start("replica", replicas, _serve, scenario, "replica", replicas, place, folder)
        keeping = start("daemon", on, _keep, on, place)
        workers = start("worker", on, _work, scenario, on, variant.synchronous)
        (server_process,) = serving.ask("process")
        with serving.awake(), following.awake(), keeping.awake():
            planning.ask("wait", len(on) + 1 + len(replicas))
            workers.ask("connect")
            began = time.monotonic() + 0.5
            planning.ask("begin", began)
            with planning.awake():
                links.start(began)
                if variant.kill_s is not None:
                    wait_s = began + variant.kill_s - time.monotonic()
                    threading.Timer(wait_s, os.kill, (server_process, signal.SIGKILL)).start()
                try:
                    workers.ask("run", began, timeout_s=scenario.duration_s + 120)
                finally:
                    links.stop()
            status, origin = planning.ask("status")[0]
    numbers = scenario.update_bytes // 4
    bound = len(on) if variant.synchronous else scenario.delay_bound // scenario.workers_per_machine
    first = np.zeros(numbers, dtype=np.float32)
    if variant.kill_s is None:
        facts = judged(folder, first, bound, status, scenario.duration_s)
        facts["slow_messages_share"] = _slow_share(folder, scenario, origin - began)
    else:
        facts = _failover(folder, first, bound, status)
    if variant.replica is not None and variant.kill_s is None:
        committed = facts["updates"] * scenario.update_bytes
        facts["replica_reduced_by"] = committed / status["hosts"]["replica"]["received_bytes"]
    logs = [folder / "server.jsonl"] if variant.kill_s is None else [folder / "replica.jsonl"]
    commits = [
        (line.arrived_s + origin - began, len(line.members) * scenario.workers_per_machine)
        for log in logs
        for line in read_log(log)
        if isinstance(line, LoggedCommit)
    ]
    return Trained(commits=[each for each in commits if each[0] <= scenario.duration_s], facts=facts)


def _slow_share(folder: Path, scenario: FabricScenario, shift_s: float) -> float:
    """Return the share of transfers of updates that went to a host whose link down was slow then."""
    links, slow, number = draw_links(scenario), 0, 0
    for line in (folder / "transfers.jsonl").read_text().splitlines():
        sent = json.loads(line)
        if not sent["purpose"].startswith("update"):
            continue
        number += 1
        if sent["to"].startswith("h"):
            rates = rates_at(links, sent["began_s"] + shift_s)
            slow += bool(rates[2 * int(sent["to"][1:]) + 1] < _SLOW_SHARE * FULL_BYTES_PER_S)
    return slow / number if number else 0.0


def _failover(folder: Path, first: Vector, bound: int, status: dict[str, Any]) -> dict[str, Any]:
    """Return how far the replica was from the server that was killed, and what became of the updates."""
    server, replica = (list(read_log(folder / f"{name}.jsonl")) for name in ("server", "replica"))
    place = next(number for number, line in enumerate(replica) if line.event == "promote")

    def model(lines: Sequence[LogHead | LoggedCommit]) -> Vector:
        def update(name: str) -> Vector:
            worker, number = worker_and_number(name)
            return random_update(worker, number, len(first))

        return replay(first, lines, update)[0].astype(np.float64)

    ids = [
        [member.id for line in lines if isinstance(line, LoggedCommit) for member in line.members]
        for lines in (server, replica[:place], replica)
    ]
    return {
        "promoted": status["promoted"],
        "greatest_lead": status["greatest_lead"],
        "true_norm": float(np.linalg.norm(model(server) - model(replica[:place]))),
        "server_updates": len(ids[0]),
        "replica_updates_at_failover": len(ids[1]),
        "updates": len(ids[2]),
        "lost": sorted(set(ids[0]) - set(ids[2])),
        "twice": len(ids[2]) - len(set(ids[2])),
        "violations": violations(server, bound) + violations(replica, bound),
    }


def _schedule(
    _rank: int,
    scenario: FabricScenario,
    place: ServerAddress,
    folder: Path,
    variant: FabricVariant,
) -> Answer:
    oracle = DrawnRates(scenario, variant.lag_s) if variant.knowledge == "oracle" else None
    names = [*(f"h{machine}" for machine in range(scenario.machines)), "server", "replica"]
    full = {"up_bytes_per_s": FULL_BYTES_PER_S, "down_bytes_per_s": FULL_BYTES_PER_S}
    nominal = FabricNetwork.model_validate(
        {"hosts": [{"name": name, **full} for name in names], "server": "server"}
    )
    options = SchedulerOptions(
        delay_bound=None if variant.synchronous else scenario.delay_bound // scenario.workers_per_machine,
        tick_s=scenario.tick_s,
        divergence=variant.replica,
        replicate_patiently=variant.patient,
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
    _rank: int, scenario: FabricScenario, name: str, on: Sequence[Host], place: ServerAddress, folder: Path
) -> Answer:
    first = np.zeros(scenario.update_bytes // 4, dtype=np.float32)
    return _daemon(name, on[0], place, HeldModel(first, log=folder / f"{name}.jsonl"))


def _keep(rank: int, on: Sequence[Host], place: ServerAddress) -> Answer:
    return _daemon(f"h{rank}", on[rank], place, None)


def _daemon(name: str, host: Host, place: ServerAddress, model: Any) -> Answer:
    replica = name == "replica"
    running = HostDaemon(
        name, place, bind=(host.address, _DAEMON), model=model, replica=replica, token=_TOKEN
    )
    assert running.address
    return lambda _request, _arguments: os.getpid()


def _work(rank: int, scenario: FabricScenario, on: Sequence[Host], synchronous: bool) -> Answer:
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
            # A synchronous worker waits for everybody's update of this round.
            needed = number * len(on) if synchronous else ended.version or 0
            version = worker.get(at_least=needed).version

    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        if request == "connect":
            address = ServerAddress(host=on[rank].address, port=_DAEMON, name="daemon")
            clients.append(FabricClient(address, worker=f"w{rank}", token=_TOKEN))
            return
        run(*arguments)

    return answer


def random_update(worker: str, number: int, numbers: int) -> Vector:
    """Return an update that a replay can draw again."""
    seed = [int(worker.removeprefix("w")), number]
    update: Vector = np.random.default_rng(seed).standard_normal(numbers, dtype=np.float32)
    return update


def judged(folder: Path, first: Vector, bound: int, status: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return what the commit log and the transfer log in a folder say of a run."""
    lines = list(read_log(folder / "server.jsonl"))
    commits = [line for line in lines if isinstance(line, LoggedCommit)]

    def update(name: str) -> Vector:
        worker, number = worker_and_number(name)
        return random_update(worker, number, len(first))

    model, _ = replay(first, lines, update)
    transfers = [json.loads(line) for line in (folder / "transfers.jsonl").read_text().splitlines()]
    long = [t for t in transfers if t["arrived_s"] - t["began_s"] >= 0.1 and t["purpose"] == "update"]
    off = [abs(t["arrived_s"] - t["planned_s"]) / (t["arrived_s"] - t["began_s"]) for t in long]
    received = status["hosts"]["server"]["received_wire_bytes"]
    planned = status["planned_server_bytes"]
    return {
        "network_state": status["network_state"],
        "violations": violations(lines, bound),
        "updates": sum(len(line.members) for line in commits),
        "commits": len(commits),
        "updates_per_s": sum(len(line.members) for line in commits) / seconds,
        "greatest_delay": max((delay for line in commits for delay in line.delays), default=0),
        "dropped": status["dropped"],
        "server_bytes_over_plan": received / planned if planned else None,
        "median_off_plan": float(np.median(off)) if off else None,
        "replayed_norm": float(np.linalg.norm(model.astype(np.float64))),
        "greatest_lead": status["greatest_lead"],
    }
