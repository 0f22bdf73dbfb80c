"""Processor time of pushing and pulling, compared with a bare socket copy of the same bytes.

    python -m benchmarks server_cpu [--workers 1,2] [--kib 64,256,1024] [--gib 1] [--json OUT.json]

A server and every worker run in processes of their own, over loopback. Workers push tensors in parts of
equal size and pull their sums. The bare copy moves the same bytes in the same parts between as many
processes, both directions at once, with only ``sendmsg`` and ``recv_into``. Both are measured in turns.
Prints the processor time of all processes for each GiB over a connection, pushes and pulls counted
separately, and the ratio of the two.
"""

import multiprocessing
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.prerequisites import require_packages

_GIB = 1 << 30
_TENSOR_BYTES = 32 << 20


def _cpu_s() -> float:
    return time.process_time()


def _serve_sums(control: Connection, workers: int) -> None:
    """Be the parameter server."""
    from pace_servers.runtime.server import Server

    with Server(workers=workers) as server:
        control.send(server.port)
        _answer(control)


def _answer(control: Connection) -> None:
    while control.recv():
        control.send(_cpu_s())


def _push_and_pull(control: Connection, port: int, rank: int, workers: int, part: int) -> None:
    """Be a worker."""
    import torch

    from pace.wire.addresses import ServerAddress
    from pace.wire.handshake import Greeting
    from pace_servers.runtime.layout import Layout, ServedSegment, memory_of
    from pace_servers.runtime.link import Countdown, PushPullCall, ServerLink

    torch.set_num_threads(1)
    link = ServerLink(
        ServerAddress(host="127.0.0.1", port=port, name="the server"),
        Greeting(job="cpu", rank=rank, size=workers, silence_s=30.0),
        token=None,
        on_failure=lambda reason: print(reason, file=sys.stderr),
        within_s=10.0,
    )
    count = _TENSOR_BYTES // part
    tensor = torch.zeros(_TENSOR_BYTES // 4)
    memory = memory_of(tensor)
    link.announce(
        Layout(
            segments=tuple(
                ServedSegment(size_bytes=part, dtype="float32", turn=turn) for turn in range(count)
            )
        )
    )

    def rounds(first: int, number: int) -> None:
        for round_ in range(first, first + number):
            # As an engine waits: for all, and not for each.
            back = Countdown(count)
            for segment in range(count):
                link.start(
                    PushPullCall(
                        segment=segment,
                        round=round_,
                        memory=memory[segment * part : (segment + 1) * part],
                        done=back.one,
                    )
                )
            back.wait(600.0)

    _timed(control, rounds)
    link.finish()
    link.close()


def _timed(control: Connection, rounds: Callable[[int, int], None]) -> None:
    """Run as many rounds as the parent asks for, and say what they cost."""
    done = 1
    while number := control.recv():
        before_s, start_s = _cpu_s(), time.perf_counter()
        rounds(done, number)
        done += number
        control.send((_cpu_s() - before_s, time.perf_counter() - start_s))


def _move(connection: socket.socket, memory: memoryview, number: int, part: int) -> None:
    """Send and receive tensors in parts, both at once, as a runtime's two threads would."""
    parts = [memory[at : at + part] for at in range(0, len(memory), part)] * number

    def send() -> None:
        for each in parts:
            left = [memoryview(bytes(32)), each]
            while left:
                sent = connection.sendmsg(left)
                while left and sent >= len(left[0]):
                    sent -= len(left.pop(0))
                if sent:
                    left[0] = left[0][sent:]

    sender = threading.Thread(target=send)
    sender.start()
    header = memoryview(bytearray(32))
    for each in parts:
        connection.recv_into(header, 32, socket.MSG_WAITALL)
        position = 0
        while position < part:
            position += connection.recv_into(each[position:])
    sender.join()


def _serve_bare(control: Connection, workers: int, part: int) -> None:
    """Be the other end of a bare copy."""
    listener = socket.create_server(("127.0.0.1", 0))
    control.send(listener.getsockname()[1])
    connections = [listener.accept()[0] for _ in range(workers)]
    memories = [memoryview(bytearray(_TENSOR_BYTES)) for _ in connections]

    def rounds(_first: int, number: int) -> None:
        threads = [
            threading.Thread(target=_move, args=(connection, memory, number, part))
            for connection, memory in zip(connections, memories, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    _timed(control, rounds)


def _copy_bare(control: Connection, port: int, part: int) -> None:
    """Be a worker of a bare copy."""
    connection = socket.create_connection(("127.0.0.1", port))
    memory = memoryview(bytearray(_TENSOR_BYTES))
    _timed(control, lambda _first, number: _move(connection, memory, number, part))


class _Group:
    """A server's process and its workers'."""

    def __init__(self, workers: int, part: int, *, bare: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._bare = bare
        self._controls: list[Connection] = []
        self._processes: list[Any] = []

        def start(target: Callable[..., None], *arguments: Any) -> Connection:
            mine, theirs = context.Pipe()
            process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
            process.start()
            self._processes.append(process)
            self._controls.append(mine)
            return mine

        server = start(_serve_bare, workers, part) if bare else start(_serve_sums, workers)
        port = server.recv()
        for rank in range(workers):
            if bare:
                start(_copy_bare, port, part)
            else:
                start(_push_and_pull, port, rank, workers, part)

    def run(self, rounds: int) -> tuple[float, float]:
        """Return the processor time of all processes, and how long the slowest worker took."""
        server, *workers = self._controls
        if not self._bare:
            server.send(True)
            before_s = server.recv()
        for control in self._controls if self._bare else workers:
            control.send(rounds)
        told = [control.recv() for control in workers]
        cpu_s = sum(each for each, _ in told)
        if self._bare:
            cpu_s += server.recv()[0]
        else:
            server.send(True)
            cpu_s += server.recv() - before_s
        return cpu_s, max(wall for _, wall in told)

    def close(self) -> None:
        """End the processes."""
        for control in self._controls[1:] + self._controls[:1]:
            control.send(0)
        for process in self._processes:
            process.join(10)
            process.terminate()


def measure(workers: int, part: int, *, gib: float, repeats: int) -> dict[str, Any]:
    """Run both in turns; medians."""
    rounds = max(round(gib * _GIB / (2 * workers * _TENSOR_BYTES)), 1)
    carried_gib = 2 * workers * rounds * _TENSOR_BYTES / _GIB
    groups = {"push-pull": _Group(workers, part, bare=False), "bare": _Group(workers, part, bare=True)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in groups}
    try:
        for group in groups.values():
            group.run(1)
        for _ in range(repeats):
            for name, group in groups.items():
                found[name].append(group.run(rounds))
    finally:
        for group in groups.values():
            group.close()
    cpu_s = {name: statistics.median(cpu for cpu, _ in runs) / carried_gib for name, runs in found.items()}
    wall_s = {name: statistics.median(wall for _, wall in runs) / carried_gib for name, runs in found.items()}
    return {
        "workers": workers,
        "part_bytes": part,
        "carried_gib": carried_gib,
        "cpu_s_per_gib": cpu_s["push-pull"],
        "bare_cpu_s_per_gib": cpu_s["bare"],
        "ratio": cpu_s["push-pull"] / cpu_s["bare"],
        "wall_s_per_gib": wall_s["push-pull"],
        "bare_wall_s_per_gib": wall_s["bare"],
    }


def main() -> int:
    """Print a table, and write JSON if asked to."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument(
        "--workers", default="1,2", help="numbers of workers, separated by commas (default: %(default)s)"
    )
    parser.add_argument(
        "--kib",
        default="64,256,1024",
        help="sizes of parts in KiB, separated by commas (default: %(default)s)",
    )
    parser.add_number("--gib", 1.0, "data that each run pushes and pulls, in GiB")
    parser.add_number("--repeats", 3, "repetitions of each measurement")
    given = parser.parse_args()
    require_packages("torch")
    rows = []
    print("workers  part KiB  CPU s/GiB  bare socket  ratio  wall s/GiB  bare wall")
    for workers in (int(each) for each in given.workers.split(",")):
        for kib in (int(each) for each in given.kib.split(",")):
            row = measure(workers, kib << 10, gib=given.gib, repeats=given.repeats)
            rows.append(row)
            print(
                f"{workers:7d}  {kib:8d}  {row['cpu_s_per_gib']:9.3f}  {row['bare_cpu_s_per_gib']:11.3f}"
                f"  {row['ratio']:5.2f}  {row['wall_s_per_gib']:10.3f}  {row['bare_wall_s_per_gib']:9.3f}",
                flush=True,
            )
    write_json(given.json, {"rows": rows})
    return 0
