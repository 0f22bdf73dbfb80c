"""torch.distributed as a transport for CUDA tensors: NCCL where the job uses it, else Gloo."""

import queue
import threading
from typing import Any

import torch
import torch.distributed as dist

from pace.runtime.gloo import GlooTransport
from pace.runtime.transport import Done


class CudaTransport(GlooTransport):
    """Sums CUDA tensors on a stream of its own; control messages still travel over Gloo.

    A segment counts as done when the device has finished it, so nobody needs to know the stream.
    """

    def __init__(self, device: torch.device, *, timeout_s: float, process_group: Any = None) -> None:
        super().__init__(timeout_s=timeout_s, process_group=process_group)
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._nccl: Any = None
        if "nccl" in str(dist.get_backend(process_group)):
            ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD)
            self._nccl = dist.new_group(ranks, backend="nccl", timeout=self._timeout)
        self._waiting: queue.SimpleQueue[tuple[Any, Done] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name="pace.completions", daemon=True)
        self._thread.start()

    def allreduce(self, segment: torch.Tensor, name: str, done: Done) -> None:  # noqa: ARG002
        """Start to sum a segment that the device has finished computing; see ``Transport``."""
        with torch.cuda.stream(self._stream):
            if self._nccl is not None:
                work: Any = dist.all_reduce(segment, group=self._nccl, async_op=True)
            else:
                work = self._segments.allreduce([segment], self._sum)
        self._waiting.put((work, done))

    def _watch(self) -> None:
        torch.cuda.set_device(self._device)
        while (entry := self._waiting.get()) is not None:
            work, done = entry
            error: BaseException | None = None
            try:
                with torch.cuda.stream(self._stream):
                    work.wait()
                    finished = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                    finished.record(self._stream)
                finished.synchronize()
            except Exception as raised:  # whatever it is, who waits is told
                error = raised
            done(error)

    def close(self, *, failed: bool) -> None:
        """Stop waiting, then close the process groups; see ``Transport``."""
        self._waiting.put(None)
        self._thread.join(timeout=1.0 if failed else None)
        if self._nccl is not None and not failed:
            dist.destroy_process_group(self._nccl)
        super().close(failed=failed)
