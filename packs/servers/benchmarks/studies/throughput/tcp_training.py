"""Asynchronous training over plain TCP: pulls, sleeping compute, pushes; the discipline is known exactly.

One connection for each worker, server and direction, each direction between hosts of its own: otherwise
acknowledgements of one would wait behind the data of the other, and hold back who is alone on a link. The
sender applies the discipline, with little in its socket's buffer. Requests for parameters and
acknowledgements of gradients go over pipes beside the network, so that links carry nothing else.
"""

import contextlib
import ctypes
import heapq
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.names import NAMESPACES
from benchmarks.harness.network.processes import Answer

_PORT = 5301
_CLONE_NEWNET = 0x40000000
_HEADER = struct.Struct("!iq")
_PIECE = bytes(64 * 1024)
# Less than a new connection may have under way (ten segments): so all have equally much, whoever came first,
# and get equal shares.
BUFFER_BYTES = 8 * 1024
_RECEIVE_BYTES = 2 * 2**20  # beyond what is ever under way: senders alone limit that, all alike

TcpDiscipline = Literal["fifo", "window", "tic", "reverse", "random"]
DISCIPLINES: tuple[TcpDiscipline, ...] = get_args(TcpDiscipline)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpJob:
    """A training job, and its workers.

    Attributes
    ----------
    layers, servers_of
        Bytes of each layer, and the server that holds it.
    forward_s, backward_s
        Mean seconds of each layer's passes; every worker's steps vary by `jitter` around them.
    buffer_bytes
        Bytes of a sender's socket buffer; None for the kernel's own.
    """

    workers: int
    servers: int
    layers: tuple[int, ...]
    servers_of: tuple[int, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    jitter: float
    discipline: TcpDiscipline
    window_bytes: int
    buffer_bytes: int | None = BUFFER_BYTES


Side = Any
"""One end of a pipe: multiprocessing's connections have a type for what they carry."""


def make_sides(job: TcpJob) -> list[list[tuple[Side, Side]]]:
    """Return for each worker and server the worker's and the server's end of a pipe."""
    return [[Pipe() for _ in range(job.servers)] for _ in range(job.workers)]


class DisciplinedSender:
    """Sends streams over one connection, in the order and the pieces that a discipline asks for.

    Parameters
    ----------
    pulled
        Whether it sends parameters: "tic", "reverse" and "random" order those; gradients go first in, first
        out.
    """

    def __init__(self, connection: socket.socket, job: TcpJob, *, pulled: bool) -> None:
        self._rank: Callable[[int], float] = lambda _: 0.0
        if pulled and job.discipline in ("tic", "reverse"):
            sign = 1 if job.discipline == "tic" else -1
            self._rank = lambda layer: sign * layer
        elif pulled and job.discipline == "random":
            self._rank = lambda _: random.random()
        if job.buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, job.buffer_bytes)
        # Else the end of a layer may wait for an acknowledgement that the receiver holds back for 40 ms.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._job = job
        self._waiting: list[tuple[float, int, int, int, bool]] = []
        self._changed = threading.Condition()
        self._count = 0
        threading.Thread(target=self._send, daemon=True).start()

    def put(self, *layers: int) -> None:
        """Let layers' bytes wait for their turn; all of them before one of them may leave."""
        with self._changed:
            for layer in layers:
                self._push(layer, self._job.layers[layer], first=True)

    def _push(self, layer: int, size: int, *, first: bool) -> None:
        heapq.heappush(self._waiting, (self._rank(layer), self._count, layer, size, first))
        self._count += 1
        self._changed.notify()

    def _send(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                _, _, layer, size, first = heapq.heappop(self._waiting)
            service = size
            if self._job.discipline == "window" and first:
                service = min(size, self._job.window_bytes)
            self._connection.sendall(_HEADER.pack(layer, service))
            left = service
            while left:
                left -= self._connection.send(memoryview(_PIECE)[: min(left, len(_PIECE))])
            if service < size:
                with self._changed:
                    self._push(layer, size - service, first=False)


def receive_layers(connection: socket.socket, job: TcpJob, arrived: Callable[[int], None]) -> None:
    """Read chunks forever; call `arrived` with each layer whose bytes are all there."""
    missing = list(job.layers)
    buffer = bytearray(1 << 20)
    while True:
        header = connection.recv(_HEADER.size, socket.MSG_WAITALL)
        if len(header) < _HEADER.size:
            return
        layer, left = _HEADER.unpack(header)
        missing[layer] -= left
        while left:
            left -= connection.recv_into(buffer, min(left, len(buffer)))
        if missing[layer] == 0:
            missing[layer] = job.layers[layer]
            arrived(layer)


@contextlib.contextmanager
def in_network(host: Host) -> Iterator[None]:
    """Make sockets on another host: they stay there, the calling thread comes back."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    other = os.open(NAMESPACES / host.namespace, os.O_RDONLY)
    try:
        if libc.setns(other, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {host.namespace}")
        try:
            yield
        finally:
            libc.setns(own, _CLONE_NEWNET)
    finally:
        os.close(own)
        os.close(other)


def tcp_main(
    rank: int,
    on: Sequence[Host],
    uploading: Sequence[Host],
    job: TcpJob,
    sides: list[list[tuple[Side, Side]]],
) -> Answer:
    """Run a server (the first ranks) or a worker, on one host for downloads and one for uploads."""
    # A connection that was idle between two steps would start slowly again, and lose its share to one that
    # was not: the sharing that is to be isolated here would depend on who came first.
    setting = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
    setting.write_text("0")
    with in_network(uploading[rank]):
        setting.write_text("0")
    if rank < job.servers:
        return _serve(rank, (on, uploading), job, [row[rank][1] for row in sides])
    return _work(rank, (on, uploading), job, [row[0] for row in sides[rank - job.servers]])


Networks = tuple[Sequence[Host], Sequence[Host]]
"""The hosts between which downloads go, and those between which uploads go."""


def _serve(server: int, networks: Networks, job: TcpJob, sides: list[Side]) -> Answer:
    listeners = []
    for network in networks:
        with in_network(network[server]):
            listener = socket.create_server((network[server].address, _PORT), backlog=job.workers)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        listeners.append(listener)

    def requests(side: Connection, sender: DisciplinedSender) -> None:
        while True:
            sender.put(*side.recv())

    def acknowledge(side: Connection) -> Callable[[int], None]:
        return lambda layer: side.send((layer, time.monotonic()))

    def connect() -> None:
        for number in range(2 * job.workers):
            is_up = number >= job.workers
            connection, _ = listeners[is_up].accept()
            (worker,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
            if is_up:
                target, arguments = receive_layers, (connection, job, acknowledge(sides[worker]))
                threading.Thread(target=target, args=arguments, daemon=True).start()
            else:
                sender = DisciplinedSender(connection, job, pulled=True)
                threading.Thread(target=requests, args=(sides[worker], sender), daemon=True).start()

    threading.Thread(target=connect, daemon=True).start()
    return lambda *_: time.process_time()


def _work(rank: int, networks: Networks, job: TcpJob, sides: list[Side]) -> Answer:
    worker = rank - job.servers
    state: dict[str, Any] = {}

    def connect() -> None:
        arrived = [threading.Event() for _ in job.layers]
        times = [0.0] * len(job.layers)

        def note(layer: int) -> None:
            times[layer] = time.monotonic()
            arrived[layer].set()

        senders = []
        for server in range(job.servers):
            for is_up in (0, 1):
                with in_network(networks[is_up][rank]):
                    connection = socket.socket()
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
                connection.connect((networks[is_up][server].address, _PORT))
                connection.sendall(struct.pack("!i", worker))
                if is_up:
                    senders.append(DisciplinedSender(connection, job, pulled=False))
                else:
                    target, arguments = receive_layers, (connection, job, note)
                    threading.Thread(target=target, args=arguments, daemon=True).start()
        state.update(arrived=arrived, times=times, senders=senders)

    def train(
        steps: int, seed: int, start_at: float
    ) -> tuple[list[float], list[dict[str, list[float]]], float]:
        rng = random.Random(f"{seed} {worker}")
        ends, records = [], []
        _sleep_until(start_at)
        used = time.process_time()
        for _ in range(steps):
            record = _step(job, state, sides, rng)
            ends.append(time.monotonic())
            records.append(record)
        return ends, records, time.process_time() - used

    def answer(request: str, arguments: tuple[Any, ...]) -> Any:
        if request == "connect":
            return connect()
        if request == "train":
            return train(*arguments)
        raise ValueError(request)

    return answer


def _step(
    job: TcpJob, state: dict[str, Any], sides: list[Side], rng: random.Random
) -> dict[str, list[float]]:
    """Train one step; return starts and durations by kind of op."""
    began = time.monotonic()
    layers = range(len(job.layers))
    record = {name: [0.0] * len(layers) for name in ("down", "forward", "backward", "up")}
    starts = {name: [0.0] * len(layers) for name in record}
    for event in state["arrived"]:
        event.clear()
    for server, side in enumerate(sides):
        side.send([layer for layer in layers if job.servers_of[layer] == server])

    def compute(name: str, layer: int, mean_s: float) -> None:
        start = time.monotonic()
        seconds = mean_s * rng.lognormvariate(0.0, job.jitter)
        _sleep_until(start + seconds)
        starts[name][layer] = start - began
        record[name][layer] = time.monotonic() - start

    for layer in layers:
        state["arrived"][layer].wait()
        record["down"][layer] = state["times"][layer] - began
        compute("forward", layer, job.forward_s[layer])
    for layer in reversed(layers):
        compute("backward", layer, job.backward_s[layer])
        starts["up"][layer] = time.monotonic() - began
        state["senders"][job.servers_of[layer]].put(layer)
    for server, side in enumerate(sides):
        for _ in range(job.servers_of.count(server)):
            layer, received = side.recv()
            record["up"][layer] = received - began - starts["up"][layer]
    return {**record, **{f"{name}_start": values for name, values in starts.items()}}


def _sleep_until(moment: float) -> None:
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
