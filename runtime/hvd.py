"""Horovod as a transport: collectives are matched by name, and rank 0 decides by submitting last."""

import collections
import contextlib
import datetime
import itertools
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import horovod.torch as hvd
import structlog
import torch
from torch._C._distributed_c10d import TCPStore

from pace.runtime.device import Device, apart
from pace.runtime.peers import Store
from pace.runtime.transport import After, Done, Sequencing

_STORE_TIMEOUT = datetime.timedelta(seconds=30)

# Half of what hvd.synchronize() itself sleeps between two looks.
_LOOK_S = 5e-4

log = structlog.get_logger("pace.runtime")

# Ranks must build their transports in the same order: names tell the instances apart. By process set,
# as ranks that share one may differ in how many others they are in.
_instances: dict[int, Iterator[int]] = collections.defaultdict(itertools.count)


class _Call(NamedTuple):
    handle: int
    done: Done
    after: After | None


class HorovodTransport:
    """Sums tensors with whatever Horovod was built for.

    Horovod has no completion callback: one thread looks at all handles under way, because they end in
    rank 0's order and not in that of their submission here.

    Parameters
    ----------
    process_set
        The processes that train together; ranks and size are counted within it.
    scale
        What every sum is multiplied by.
    """

    sequencing: Sequencing = "submission"
    # A cycle of Horovod's (1 ms), its negotiation, and a look of ours.
    hand_over_s = 2.5e-3

    def __init__(
        self,
        process_set: Any = hvd.global_process_set,
        *,
        scale: float = 1.0,
        device: Device | None = None,
    ) -> None:
        self.rank: int = process_set.rank()
        self.size: int = process_set.size()
        self._process_set = process_set
        # Horovod's broadcast counts roots over all processes, not within the set.
        self._root: int = process_set.ranks[0]
        self._scale = scale
        self.device = device
        number = process_set.process_set_id
        self._prefix = f"pace.{number}.{next(_instances[number])}"
        self._calls = itertools.count()
        self.peer_store: Store | None = self._open_store()
        self._waiting: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name=f"{self._prefix}.completions", daemon=True)
        self._thread.start()

    def allreduce(self, segment: torch.Tensor, name: str, done: Done, after: After | None = None) -> Any:
        """Start to sum a segment; see ``Transport``."""
        # Horovod waits for what is queued where it is called, and compute is queued far ahead.
        with apart(self.device):
            handle = hvd.allreduce_async_(
                segment,
                name=f"{self._prefix}.{name}",
                op=hvd.Sum,
                postscale_factor=self._scale,
                process_set=self._process_set,
            )
        self._waiting.put(_Call(handle, done, after))

    def _watch(self) -> None:
        under_way: list[_Call] = []
        while True:
            for call in self._submitted(wait=not under_way):
                if call is None:
                    return
                under_way.append(call)
            ended = [call for call in under_way if hvd.poll(call.handle)]
            if not ended:
                time.sleep(_LOOK_S)
                continue
            under_way = [call for call in under_way if call not in ended]
            for call in ended:
                error: BaseException | None = None
                try:
                    self._finish(call)
                except Exception as raised:  # whatever it is, who waits is told
                    error = raised
                call.done(error)

    def _finish(self, call: "_Call") -> None:
        with apart(self.device):
            hvd.synchronize(call.handle)
            if call.after is not None:
                call.after()
            moment = None if self.device is None else self.device.now()
        if moment is not None:
            moment.synchronize()

    def _submitted(self, *, wait: bool) -> Iterator["_Call | None"]:
        """Yield what was submitted since the last call; with `wait`, at least one entry."""
        if wait:
            yield self._waiting.get()
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._waiting.get_nowait()

    def decide(self, segment: int | None) -> int:  # noqa: ARG002
        """Not needed: see ``Transport``."""
        raise AssertionError("Horovod's order is rank 0's order of submission")

    def broadcast(self, payload: bytes | None) -> bytes:
        """Give rank 0's payload to all ranks."""
        length = torch.tensor([0 if payload is None else len(payload)], dtype=torch.int64)
        self.broadcast_tensor(length)
        message = _to_tensor(payload or b"", int(length.item()))
        self.broadcast_tensor(message)
        return _to_bytes(message)

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite a tensor in the host's memory with rank 0's; see ``Transport``."""
        if tensor.numel():
            hvd.broadcast_(tensor, self._root, name=self._control_name(), process_set=self._process_set)

    def gather(self, payload: bytes) -> list[bytes]:
        """Give every rank's payload to every rank."""
        lengths = self._allgather(torch.tensor([len(payload)], dtype=torch.int64)).tolist()
        joined = _to_bytes(self._allgather(_to_tensor(payload, len(payload))))
        ends = list(itertools.accumulate(lengths))
        return [joined[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def _allgather(self, tensor: torch.Tensor) -> Any:
        return hvd.allgather(tensor, name=self._control_name(), process_set=self._process_set)

    def _open_store(self) -> Store | None:
        """Open a store on rank 0; Horovod's own cannot be reached from outside."""
        store = None
        address = b""
        if self.rank == 0:
            with contextlib.suppress(RuntimeError, OSError):
                host = _own_address()
                store = TCPStore(host, 0, self.size, True, _STORE_TIMEOUT, wait_for_workers=False)
                address = f"{host}:{store.port}".encode()
        host, _, port = self.broadcast(address if self.rank == 0 else None).decode().rpartition(":")
        if self.rank != 0 and port:
            with contextlib.suppress(RuntimeError, OSError):
                store = TCPStore(host, int(port), self.size, False, _STORE_TIMEOUT)
        if store is None:
            log.warning("pace.no_peer_store", consequence="errors will not name the rank at fault")
        return store

    def _control_name(self) -> str:
        return f"{self._prefix}.control.{next(self._calls)}"

    def close(self, *, failed: bool) -> None:
        """Stop waiting for handles; see ``Transport``."""
        self._waiting.put(None)
        self._thread.join(timeout=1.0 if failed else None)


def _own_address() -> str:
    """The address by which other ranks reach this one: that of the way to Horovod's rendezvous."""
    rendezvous = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR") or socket.gethostname()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((rendezvous, 9))
        return str(probe.getsockname()[0])


def _to_tensor(payload: bytes, length: int) -> torch.Tensor:
    message = torch.zeros(length, dtype=torch.uint8)
    if payload:
        message[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    return message


def _to_bytes(message: torch.Tensor) -> bytes:
    array: Any = message.numpy()
    found: bytes = array.tobytes()
    return found
