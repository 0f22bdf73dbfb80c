"""Synchronous training: torch's all-reduce over Gloo (a ring), and a pipelined binary tree over sockets.

All begin an iteration together. Two workers of a host, each with a flow of its own over the host's link, are
one rank that carries the bytes of both.
"""

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import join_torch
from benchmarks.harness.network.processes import Answer, ranks
from benchmarks.studies.fabric.plain_server import bytes_of, receive
from benchmarks.studies.fabric.setting import ChangingLinks, Trained, host_computations, sleep_until
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.simulation.draws import draw_links, rates_at

_PORT = 5302
_BLOCK = 16 * 1024  # numbers


def train_synchronously(
    scenario: FabricScenario, kind: Literal["ring", "tree"], on: Sequence[Host]
) -> Trained:
    """Train until the time is up; the iteration that is under way then does not count."""
    if kind == "ring":
        import torch.distributed  # noqa: F401  # once, before ranks are forked
    links = ChangingLinks(scenario, on)
    links.shape(0.0)
    main = _ring if kind == "ring" else _tree
    with ranks(kind, on, main, scenario, on, undisturbed=False) as group:
        group.ask("connect")
        began = time.monotonic() + 0.5
        links.start(began)
        try:
            rounds = group.ask("run", began, timeout_s=2 * scenario.duration_s + 120)[0]
        finally:
            links.stop()
    ended = [at for at in rounds if at <= scenario.duration_s]
    facts: dict[str, Any] = {"rounds": len(ended)}
    if kind == "tree":
        facts["slow_messages_share"] = _slow_share(scenario, [0.0, *ended[:-1]])
    return Trained(commits=[(at, scenario.num_workers) for at in ended], facts=facts)


def _slow_share(scenario: FabricScenario, rounds_s: Sequence[float]) -> float:
    """Return the share of the tree's messages up that go to a host whose link down is slow then."""
    links, full = draw_links(scenario), max(scenario.links.bytes_per_s)
    slow = [
        rates_at(links, at)[2 * ((machine - 1) // 2) + 1] < 0.3 * full
        for at in rounds_s
        for machine in range(1, scenario.machines)
    ]
    return float(np.mean(slow)) if slow else 0.0


def _numbers(scenario: FabricScenario, kind: Literal["ring", "tree"]) -> int:
    """Return how many numbers a rank adds, so that links carry what all workers' ranks would have them.

    With one flow a host's workers are summed first, and the ring has as many members as there are hosts.
    """
    hosts = scenario.machines
    workers = hosts if scenario.flows == 1 else scenario.num_workers
    own = scenario.update_bytes // 4 * scenario.flows
    return round(own * (workers - 1) / workers * hosts / (hosts - 1)) if kind == "ring" else own


def _rounds(
    rank: int, scenario: FabricScenario, numbers: int, add: Callable[[Any], Any]
) -> Callable[[float], list[float]]:
    def run(began_s: float) -> list[float]:
        compute, ends = host_computations(scenario, rank), list[float]()
        values = np.zeros(numbers, dtype=np.float32)
        sleep_until(began_s)
        while True:
            time.sleep(compute.draw_s())
            values[:] = rank
            # All must stop after the same round: the first number is rank 0's vote.
            values[0] = rank == 0 and time.monotonic() - began_s > scenario.duration_s
            add(values)
            ends.append(time.monotonic() - began_s)
            if values[0] > 0:
                return ends
            assert values[-1] == sum(range(scenario.machines))

    return run


def _ring(rank: int, scenario: FabricScenario, on: Sequence[Host]) -> Answer:
    def add(values: Any) -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.from_numpy(values))

    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        if request == "connect":
            join_torch(rank, on, _PORT)
            return None
        return _rounds(rank, scenario, _numbers(scenario, "ring"), add)(*arguments)

    return answer


def _tree(rank: int, scenario: FabricScenario, on: Sequence[Host]) -> Answer:
    listener = socket.create_server((on[rank].address, _PORT))
    children = [child for child in (2 * rank + 1, 2 * rank + 2) if child < len(on)]
    below: list[socket.socket] = []
    above: list[socket.socket] = []

    def add(values: Any) -> None:
        part = np.empty(_BLOCK, dtype=np.float32)
        blocks = [values[first : first + _BLOCK] for first in range(0, len(values), _BLOCK)]
        for block in blocks:
            for child in below:
                _take(child, part[: len(block)])
                block += part[: len(block)]
            for parent in above:
                parent.sendall(bytes_of(block))
        for block in blocks:
            for parent in above:
                _take(parent, block)
            for child in below:
                child.sendall(bytes_of(block))

    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        if request == "connect":
            if rank:
                above.append(socket.create_connection((on[(rank - 1) // 2].address, _PORT), timeout=30))
            below.extend(listener.accept()[0] for _ in children)
            for connection in (*above, *below):
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return None
        return _rounds(rank, scenario, _numbers(scenario, "tree"), add)(*arguments)

    return answer


def _take(connection: socket.socket, into: Any) -> None:
    if not receive(connection, bytes_of(into)):
        raise EOFError("a neighbor in the tree is gone")
