"""Horovod as a transport: collectives are matched by name, and rank 0 decides by submitting last."""

import itertools
import queue
import threading
from typing import Any

import horovod.torch as hvd
import torch

from pace.runtime.transport import Done, Sequencing

# Ranks must build their transports in the same order: names tell the instances apart.
_instances = itertools.count()


class HorovodTransport:
    """Sums tensors with whatever Horovod was built for.

    Horovod has no completion callback: one thread waits for the handles in the order of submission.
    """

    sequencing: Sequencing = "submission"

    def __init__(self) -> None:
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()
        self._prefix = f"pace.{next(_instances)}"
        self._calls = itertools.count()
        self._waiting: queue.SimpleQueue[tuple[int, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name=f"{self._prefix}.completions", daemon=True)
        self._thread.start()

    def allreduce(self, segment: torch.Tensor, name: str, done: Done) -> None:
        """Start to sum a segment; see ``Transport``."""
        handle = hvd.allreduce_async_(segment, name=f"{self._prefix}.{name}", op=hvd.Sum)
        self._waiting.put((handle, done))

    def _watch(self) -> None:
        while (entry := self._waiting.get()) is not None:
            handle, done = entry
            error: BaseException | None = None
            try:
                hvd.synchronize(handle)
            except BaseException as raised:
                error = raised
            done(error)

    def decide(self, segment: int | None) -> int:  # noqa: ARG002
        """Not needed: see ``Transport``."""
        raise AssertionError("Horovod's order is rank 0's order of submission")

    def broadcast(self, payload: bytes | None) -> bytes:
        """Give rank 0's payload to all ranks."""
        length = torch.tensor([0 if payload is None else len(payload)], dtype=torch.int64)
        length = hvd.broadcast(length, 0, name=self._control_name())
        message = _to_tensor(payload or b"", int(length.item()))
        if message.numel():
            message = hvd.broadcast(message, 0, name=self._control_name())
        return _to_bytes(message)

    def gather(self, payload: bytes) -> list[bytes]:
        """Give every rank's payload to every rank."""
        lengths = hvd.allgather(
            torch.tensor([len(payload)], dtype=torch.int64), name=self._control_name()
        ).tolist()
        joined = _to_bytes(hvd.allgather(_to_tensor(payload, len(payload)), name=self._control_name()))
        ends = list(itertools.accumulate(lengths))
        return [joined[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def _control_name(self) -> str:
        return f"{self._prefix}.control.{next(self._calls)}"

    def close(self, *, failed: bool) -> None:
        """Stop waiting for handles; see ``Transport``."""
        self._waiting.put(None)
        self._thread.join(timeout=1.0 if failed else None)


def _to_tensor(payload: bytes, length: int) -> torch.Tensor:
    message = torch.zeros(length, dtype=torch.uint8)
    if payload:
        message[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    return message


def _to_bytes(message: torch.Tensor) -> bytes:
    array: Any = message.numpy()
    found: bytes = array.tobytes()
    return found
