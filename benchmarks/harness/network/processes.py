"""Processes on hosts: forked from this one, so that nobody loads torch again, and stoppable.

A rank answers requests, one at a time, over a pipe. Ranks that are not wanted for a while are stopped
with SIGSTOP: an idle Horovod still wakes a thousand times a second and talks to its peers.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from benchmarks.harness.network.hosts import Host
from benchmarks.harness.network.joining import (
    die_with_parent,
    enter,
    keep_freed_memory,
    run_undisturbed,
    sleep_precisely,
)
from benchmarks.harness.prerequisites import RankFailed

Answer = Callable[[str, tuple[Any, ...]], Any]
"""What a rank does with a request: its name and arguments in, the reply out."""

Main = Callable[..., Answer]
"""What a rank runs first, as ``main(rank, *arguments)``; returns what answers its requests."""


def answering(served: object) -> Answer:
    """Return what answers requests by calling an object's methods of that name."""
    return lambda request, arguments: getattr(served, request)(*arguments)


class Ranks:
    """One process on each host, that answer requests together."""

    def __init__(
        self, name: str, processes: Sequence[BaseProcess], pipes: Sequence["Connection[Any, Any]"]
    ) -> None:
        self.name = name
        self._processes = processes
        self._pipes = pipes
        self._killed = False

    def ask(self, request: str, *arguments: Any, timeout_s: float = 120.0) -> list[Any]:
        """Send a request to every rank and return all replies, in rank order.

        Raises
        ------
        RankFailed
            When a rank raised, died, or gave no answer in time.
        """
        return self.ask_each(request, [arguments] * len(self._pipes), timeout_s=timeout_s)

    def ask_each(
        self, request: str, arguments: Sequence[tuple[Any, ...]], *, timeout_s: float = 120.0
    ) -> list[Any]:
        """Send a request with arguments of its own to every rank; see ``ask``."""
        with self.awake():
            for rank, (pipe, own) in enumerate(zip(self._pipes, arguments, strict=True)):
                try:
                    pipe.send((request, own))
                except OSError:
                    raise RankFailed(f"{self.name}: rank {rank} is gone before {request}") from None
            return self._replies(request, timeout_s)

    def _replies(self, request: str, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        replies: dict[int, Any] = {}
        while len(replies) < len(self._pipes):
            missing = {pipe: rank for rank, pipe in enumerate(self._pipes) if rank not in replies}
            ready = wait(list(missing), max(deadline - time.monotonic(), 0.0))
            if not ready:
                late = list(missing.values())
                raise RankFailed(f"{self.name}: no answer to {request} from ranks {late} in {timeout_s:g} s")
            for pipe, rank in missing.items():
                if pipe not in ready:
                    continue
                try:
                    failed, reply = pipe.recv()
                except EOFError:
                    self._processes[rank].join(1.0)
                    code = self._processes[rank].exitcode
                    raise RankFailed(f"{self.name}: rank {rank} died in {request} (exit {code})") from None
                if failed:
                    raise RankFailed(f"{self.name}: rank {rank} in {request}:\n{reply}")
                replies[rank] = reply
        return [replies[rank] for rank in range(len(self._pipes))]

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let the ranks run while the block does; they are stopped otherwise."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)

    def kill(self) -> None:
        """End all ranks at once, whatever they are doing; idempotent."""
        if self._killed:
            return
        self._killed = True
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()


@contextlib.contextmanager
def ranks(
    name: str,
    on: Sequence[Host],
    main: Main,
    *arguments: Any,
    environment: dict[str, str] | None = None,
    undisturbed: bool = True,
    timeout_s: float = 120.0,
) -> Iterator[Ranks]:
    """Run ``main(rank, *arguments)`` on every host and keep the ranks for requests, until the block ends.

    `environment` is set before `main` runs. Nothing is passed by pickling: a fork has it all. `undisturbed`
    ranks go before other programs of the machine; ranks that compute all the time must not. These keep the
    memory that they free.

    Raises
    ------
    RankFailed
        When `main` raises on a rank, or does not return in time.
    """
    # Dummies stand for threads that Python did not start, and stay when those have ended.
    threads = [each.name for each in threading.enumerate() if not isinstance(each, threading._DummyThread)]
    if len(threads) > 1:
        raise RuntimeError(f"cannot fork beside other threads: {threads}")
    context = multiprocessing.get_context("fork")
    processes: list[BaseProcess] = []
    pipes: list[Connection[Any, Any]] = []
    started = Ranks(name, processes, pipes)
    try:
        for rank, host in enumerate(on):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_run,
                args=(rank, host, main, arguments, environment or {}, undisturbed, theirs),
                name=f"{name}.{rank}",
                daemon=True,
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        started._replies("start", timeout_s)
        started._signal(signal.SIGSTOP)
        yield started
    finally:
        started.kill()


def _run(
    rank: int,
    host: Host,
    main: Main,
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    undisturbed: bool,
    pipe: "Connection[Any, Any]",
) -> None:
    die_with_parent()
    # Ctrl-C reaches the whole foreground group: the parent alone decides what comes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    failed = False
    try:
        enter(host)
        sleep_precisely()
        if undisturbed:
            run_undisturbed()
        else:
            keep_freed_memory()
        os.environ.update(environment)
        answer = main(rank, *arguments)
        pipe.send((False, None))
        while True:
            request, own = pipe.recv()
            pipe.send((False, answer(request, own)))
    except EOFError:
        pass
    except BaseException:
        failed = True
        with contextlib.suppress(OSError):
            pipe.send((True, traceback.format_exc()))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Backends abort when their threads outlive what they use: leave without the interpreter's exit.
        os._exit(1 if failed else 0)
