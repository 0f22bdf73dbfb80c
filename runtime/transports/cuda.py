"""torch.distributed as a transport for CUDA tensors: NCCL if the job uses it, else Gloo."""

import datetime
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, ReduceScatterOptions, Store

from pace.runtime.transports.device import CudaDevice
from pace.runtime.transports.gloo import GlooTransport
from pace.runtime.transports.torch_threads import torch_thread
from pace.runtime.transports.transport import After, Done, Parts

_IN_ORDER_SUM, _IN_ORDER_GATHER = ReduceScatterOptions(), AllgatherOptions()
_IN_ORDER_SUM.asyncOp = _IN_ORDER_GATHER.asyncOp = False

NCCL_BYTES = 25 * 2**20
"""As DDP's buckets: handing a sum to NCCL takes the host 0.1 ms, in which a fast network carries 4 MiB."""


class CudaTransport(GlooTransport):
    """Sums CUDA tensors on the device's stream for communication; control messages use Gloo.

    NCCL queues its sums, so the event that a sum is done exists at once. Gloo's sums pass through the host,
    which has to wait for them.
    """

    def __init__(self, device: CudaDevice, *, timeout_s: float, process_group: Any = None) -> None:
        self.device: CudaDevice = device
        self._nccl: Any = None
        self._thread: threading.Thread | None = None
        super().__init__(timeout_s=timeout_s, process_group=process_group)
        self._waiting: queue.SimpleQueue[tuple[Any, Any, After | None, Done] | None] = queue.SimpleQueue()
        self._thread = torch_thread(self._watch, name="pace.completions")
        self._thread.start()

    def _connect_sums(self, store: Store, group: dist.ProcessGroup) -> None:
        if "nccl" in str(dist.get_backend(group)):
            self._nccl = connect_nccl(store, self.rank, self.size, timeout=self._timeout)
            # In the queue for communication itself, not in a third stream: a client of MPS has two
            # connections to the device, and what waits in a stream holds up all that share its connection.
            self._sum.asyncOp = False
            self.queues_calls, self.local_bytes = True, NCCL_BYTES
        self.has_halves = self._nccl is not None

    def allreduce(
        self,
        segment: torch.Tensor,
        name: str,  # noqa: ARG002
        done: Done,
        after: After | None = None,
    ) -> Any:
        """Start to sum a segment; see ``Transport``."""
        summed = None
        with self.device.apart():
            if self._nccl is not None:
                work: Any = self._nccl.allreduce([segment], self._sum)
                summed = self._finish(work, after)
            else:
                work = self._segments.allreduce([segment], self._sum)
        self._waiting.put((work, summed, after, done))
        return summed

    def reduce_scatter(self, parts: Parts, name: str, done: Done) -> Any:  # noqa: ARG002
        """Start to sum matrices by rows; see ``Transport``."""
        return self._halve(parts, done, self._nccl._reduce_scatter_base, _IN_ORDER_SUM, gathers=False)

    def all_gather(self, parts: Parts, name: str, done: Done) -> Any:  # noqa: ARG002
        """Start to give every rank all rows; see ``Transport``."""
        return self._halve(parts, done, self._nccl._allgather_base, _IN_ORDER_GATHER, gathers=True)

    def _halve(
        self, parts: Parts, done: Done, call: Callable[..., Any], options: Any, *, gathers: bool
    ) -> Any:
        """Queue a half in place; NCCL needs rows one after another, so other matrices are copied first."""
        filled = [part for part in parts if part.shape[1]]
        alone = len(filled) == 1 and filled[0].is_contiguous()
        with self.device.apart(), torch.no_grad():
            if filled:
                rows = filled[0] if alone else torch.cat(filled, dim=1)
                own = rows[self.rank]
                call(*((rows, own) if gathers else (own, rows)), options)
                if not alone:
                    ends = torch.split(rows, [part.shape[1] for part in filled], dim=1)
                    torch._foreach_copy_(filled, ends)
            ended = self.device.now()
        self._waiting.put((None, ended, None, done))
        return ended

    def _finish(self, work: Any, after: After | None) -> Any:
        """Queue the work after a sum, and return the event at which all is done."""
        if work is not None:
            work.wait()  # Gloo's blocks the calling thread
        if after is not None:
            after()
        return self.device.now()

    def _watch(self) -> None:
        while (entry := self._waiting.get()) is not None:
            work, summed, after, done = entry
            error: BaseException | None = None
            try:
                if summed is None:
                    with self.device.apart():
                        summed = self._finish(work, after)
                summed.synchronize()  # if a peer is gone, NCCL's own watchdog ends the process
            except Exception as raised:  # any error is passed on to waiting threads
                error = raised
            del work
            done(error)

    def close(self, *, failed: bool) -> None:
        """Stop waiting, then close the process groups; see ``Transport``."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(timeout=1.0 if failed else None)
        if self._nccl is not None and not failed:
            self._nccl.shutdown()
        self._nccl = None
        super().close(failed=failed)


def connect_nccl(store: Store, rank: int, size: int, *, timeout: datetime.timedelta) -> Any:
    """Make a communicator of the ranks that share a store; every rank must call it.

    torch keeps no record of it, so its keys in the store are those of this meeting alone.
    """
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(PrefixStore("nccl", store), rank, size, options)
