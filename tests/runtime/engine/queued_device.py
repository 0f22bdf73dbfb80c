"""A device that runs behind the host, for machines without one: in-order queues of closures, not of kernels.

What the runtime may take for granted of a GPU and no more: a queue is worked off in order, queues know
nothing of one another but through moments, and the host returns at once. After an error every wait raises.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import pace.runtime.options
from pace.runtime.transports.gloo import GlooTransport
from pace.runtime.transports.transport import After, Done, Parts


class _Moment:
    def __init__(self, errors: list[Exception]) -> None:
        self.passed = threading.Event()
        self.at_s = 0.0
        self._errors = errors

    def reach(self) -> None:
        self.at_s = time.perf_counter()
        self.passed.set()

    def synchronize(self) -> None:
        assert self.passed.wait(60), "the device never came here"
        if self._errors:
            raise self._errors[0]


class _Queue:
    def __init__(self, name: str, errors: list[Exception]) -> None:
        self._errors = errors
        self.work: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=f"queued-device.{name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (work := self.work.get()) is not None:
            try:
                work()
            except Exception as error:  # as on a GPU, whoever waits next is told
                self._errors.append(error)


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Queues operations that return a new tensor, which holds other values until its queue comes to it."""

    def __init__(self, queue: Callable[[Callable[[], Any]], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self._queue = queue

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        def compute() -> Any:
            return operation(*arguments, **(options or {}))

        early = compute()
        self._queue(lambda: early.copy_(compute()))
        return early


class QueuedDevice:
    """A ``Device`` with one queue for compute and one for communication."""

    runs_behind = True

    def __init__(self) -> None:
        self._errors: list[Exception] = []
        self._compute = _Queue("compute", self._errors)
        self._communication = _Queue("communication", self._errors)
        self._inside = threading.local()

    @property
    def _current(self) -> _Queue:
        return getattr(self._inside, "queue", self._compute)

    def run(self, work: Callable[[], Any]) -> None:
        """Queue a kernel."""
        self._current.work.put(work)

    def now(self) -> _Moment:
        """See ``Device``."""
        moment = _Moment(self._errors)
        self.run(moment.reach)
        return moment

    def seconds(self, stamps: Sequence[_Moment]) -> list[float]:
        """See ``Clock``."""
        stamps[-1].synchronize()
        return [stamp.at_s - stamps[0].at_s for stamp in stamps]

    def reserve(self, count: int) -> None:
        """See ``Clock``."""

    def wait_for(self, moment: _Moment) -> None:
        """See ``Device``."""
        self.run(lambda: moment.passed.wait(60))

    def reached(self, moment: _Moment) -> bool:
        """See ``Device``."""
        return moment.passed.is_set()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """See ``Device``."""
        self._inside.queue = self._communication
        try:
            with _Kernels(self.run):
                yield
        finally:
            del self._inside.queue

    def note_queue(self) -> None:
        """See ``Device``; there is one queue for compute."""

    @contextmanager
    def in_noted_queue(self) -> Iterator[None]:
        """See ``Device``."""
        yield

    def close(self) -> None:
        """Do what is queued, then end the threads."""
        for queue in (self._compute, self._communication):
            queue.work.put(None)
            queue.thread.join()


class LaggingDevice(QueuedDevice):
    """One that notices late what the host has computed itself, for whole training loops on the CPU."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._delays = random.Random(seed)

    def now(self) -> _Moment:
        """Return a moment that passes some time after everything before it."""
        delay_s = self._delays.random() * 1e-3
        self.run(lambda: time.sleep(delay_s))
        return super().now()

    def wait_for(self, moment: _Moment) -> None:
        """Block, unless inside ``apart``: what comes next is computed by the host, at once."""
        if self._current is self._communication:
            super().wait_for(moment)
        else:
            assert moment.passed.wait(60)


class QueuedTransport(GlooTransport):
    """Sums over real Gloo, queued as NCCL queues: whoever asks gets a moment at once.

    Parameters
    ----------
    knows_moments
        Whether it does; else it is like Horovod, whose sums the host waits for.
    """

    def __init__(
        self,
        device: QueuedDevice,
        *,
        knows_moments: bool = True,
        timeout_s: float = 60.0,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(timeout_s=timeout_s, process_group=process_group)
        self.device: QueuedDevice = device
        self.sent: list[int] = []
        self._knows_moments = self.queues_calls = knows_moments
        self._waiting: SimpleQueue[tuple[_Moment, Done] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name="queued-transport", daemon=True)
        self._thread.start()

    def allreduce(self, segment: torch.Tensor, name: str, done: Done, after: After | None = None) -> Any:
        """See ``Transport``."""
        self.sent.append(int(name.split(".")[-2]))
        return self._queue(lambda: self._segments.allreduce([segment], self._sum).wait(), done, after)

    def reduce_scatter(self, parts: Parts, name: str, done: Done) -> Any:
        """See ``Transport``."""
        return self._queue(
            lambda: self._halve(super(QueuedTransport, self).reduce_scatter, parts, name), done
        )

    def all_gather(self, parts: Parts, name: str, done: Done) -> Any:
        """See ``Transport``."""
        return self._queue(lambda: self._halve(super(QueuedTransport, self).all_gather, parts, name), done)

    @staticmethod
    def _halve(half: Callable[[Parts, str, Done], None], parts: Parts, name: str) -> None:
        ended: SimpleQueue[BaseException | None] = SimpleQueue()
        half(parts, name, ended.put)
        if (error := ended.get(timeout=60)) is not None:
            raise error

    def _queue(self, call: Callable[[], Any], done: Done, after: After | None = None) -> Any:
        with self.device.apart():
            self.device.run(call)
            if after is not None:
                self.device.run(after)
            summed = self.device.now()
        self._waiting.put((summed, done))
        return summed if self._knows_moments else None

    def _watch(self) -> None:
        while (entry := self._waiting.get()) is not None:
            summed, done = entry
            error: BaseException | None = None
            try:
                summed.synchronize()
            except Exception as raised:  # whatever it is, who waits is told
                error = raised
            done(error)

    def close(self, *, failed: bool) -> None:
        """See ``Transport``."""
        self._waiting.put(None)
        self._thread.join()
        self.device.close()
        super().close(failed=failed)


def simulate_gpu(seed: int) -> None:
    """Make the wrappers of this process treat every model as if it were on a device with a random lag."""
    vars(pace.runtime.options).update(
        device_of=lambda _model: LaggingDevice(seed),
        CudaTransport=QueuedTransport,
    )
