"""torch.distributed as a transport.

Process groups of the runtime's own, so that the user's collectives never come between its own.
"""

import atexit
import datetime
import itertools
import os
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    Store,
)

from pace.errors import InvalidUse
from pace.runtime.device import Device
from pace.runtime.peers import Store as PeerStore
from pace.runtime.transport import After, Done, Sequencing

# Ranks must build their transports in the same order, as with torch.distributed.new_group.
_instances = itertools.count()

_closing: list[threading.Thread] = []


@atexit.register
def _finish_closing() -> None:
    # Gloo's threads must not call into an interpreter that is gone; but no exit takes for ever either.
    deadline = time.monotonic() + 10.0
    for thread in _closing:
        thread.join(max(deadline - time.monotonic(), 0.0))


# What is in flight at once shares the network, and the urgent one of two segments ends as late as the other:
# with more than one thread, two large segments in flight cost a window of 0.5 s a quarter on the testbed.
_THREADS = 1


class GlooTransport:
    """Sums tensors in the host's memory with Gloo.

    Completions come from Gloo's own threads. Three process groups, because calls on one group must be
    made in one order and these come from different threads: segments, rank 0's decisions (opened at
    first need) and control messages.
    """

    sequencing: Sequencing = "decision"
    hand_over_s = 1e-3
    device: Device | None = None

    def __init__(self, *, timeout_s: float, process_group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise InvalidUse("call torch.distributed.init_process_group() before DistributedOptimizer(...)")
        group = process_group or dist.group.WORLD
        assert group is not None
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        members = "-".join(map(str, dist.get_process_group_ranks(group)))
        number = next(_instances)
        self.store: Store = PrefixStore(f"pace/{number}/{hash_text(members)}", _default_store())
        self.peer_store: PeerStore | None = self.store.clone()  # type: ignore[attr-defined]  # missing in its stub
        self._timeout = datetime.timedelta(seconds=timeout_s)
        self._segments = self._connect("segments", _THREADS)
        self._control = self._connect("control", 1)
        self._decisions = self._connect("decisions", 1)
        self._sum = AllreduceOptions()
        self._sum.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM)

    def _connect(self, name: str, threads: int) -> Any:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in its stub
        interfaces = [i for i in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if i]
        options._devices = [ProcessGroupGloo.create_device(interface=i) for i in interfaces] or [
            ProcessGroupGloo.create_default_device()
        ]
        options._threads = threads
        options._timeout = self._timeout
        return ProcessGroupGloo(PrefixStore(name, self.store), self.rank, self.size, options)

    def allreduce(
        self,
        segment: torch.Tensor,
        name: str,  # noqa: ARG002
        done: Done,
        after: After | None = None,
    ) -> Any:
        """Start to sum a segment; see ``Transport``."""
        work = self._segments.allreduce([segment], self._sum)

        def complete(future: Any) -> None:
            # `work` is held until here: it owns what Gloo's threads are using.
            nonlocal work
            error: BaseException | None = None
            try:
                future.value()
                if after is not None:
                    after()
            except Exception as raised:  # whatever it is, who waits is told
                error = raised
            work = None
            done(error)

        work.get_future().add_done_callback(complete)

    def decide(self, segment: int | None) -> int:
        """Publish or learn rank 0's choice; see ``Transport``."""
        message = torch.tensor([-1 if segment is None else segment], dtype=torch.int64)
        self._broadcast(self._decisions, message)
        return int(message.item())

    def broadcast(self, payload: bytes | None) -> bytes:
        """Give rank 0's payload to all ranks."""
        length = torch.tensor([0 if payload is None else len(payload)], dtype=torch.int64)
        self._broadcast(self._control, length)
        message = _to_tensor(payload or b"", int(length.item()))
        self._broadcast(self._control, message)
        return message.numpy().tobytes()

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite a tensor in the host's memory with rank 0's; see ``Transport``."""
        self._broadcast(self._control, tensor)

    def gather(self, payload: bytes) -> list[bytes]:
        """Give every rank's payload to every rank."""
        lengths = self._gather(torch.tensor([len(payload)], dtype=torch.int64))
        longest = max(int(length.item()) for length in lengths)
        messages = self._gather(_to_tensor(payload, longest))
        return [
            message.numpy().tobytes()[: int(length.item())]
            for message, length in zip(messages, lengths, strict=True)
        ]

    def _broadcast(self, group: Any, message: torch.Tensor) -> None:
        if message.numel():
            options = BroadcastOptions()
            options.rootRank = 0
            group.broadcast([message], options).wait()

    def _gather(self, message: torch.Tensor) -> list[torch.Tensor]:
        outputs = [torch.empty_like(message) for _ in range(self.size)]
        if message.numel():
            self._control.allgather([outputs], [message], AllgatherOptions()).wait()
        return outputs

    def close(self, *, failed: bool) -> None:
        """Close the process groups; see ``Transport``."""
        groups = [self._segments, self._control, self._decisions]
        self._segments = self._control = self._decisions = None
        if failed:
            # Their destructors wait for calls that only end when the time-out does.
            thread = threading.Thread(target=groups.clear, name="pace.close", daemon=True)
            thread.start()
            _closing.append(thread)
        else:
            groups.clear()


def hash_text(text: str) -> str:
    """Shorten a text to what fits a key; equal on all ranks."""
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _default_store() -> Store:
    store: Store = dist.distributed_c10d._get_default_store()
    return store


def _to_tensor(payload: bytes, length: int) -> torch.Tensor:
    message = torch.zeros(length, dtype=torch.uint8)
    if payload:
        message[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    return message
