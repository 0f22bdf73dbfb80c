"""Gloo's process groups of a transport: connecting and releasing them."""

import datetime
import os
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    Store,
)

from pace.runtime.transports.torch_threads import Sockets, torch_thread
from pace.runtime.transports.transport import to_bytes, to_tensor

# A gathering first sends the length of each payload, and its first bytes.
_LENGTH_BYTES = 8
_HEAD_BYTES = 504


def connect_group(
    store: Store,
    name: str,
    rank: int,
    size: int,
    *,
    timeout: datetime.timedelta,
    threads: int = 1,
    hostname: str | None = None,
) -> Any:
    """Connect the ranks of a store to one another; every rank must call it.

    Parameters
    ----------
    hostname
        The name by which other ranks reach this one (default: the machine's name). An interface named in the
        environment takes precedence.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in its stub
    interfaces = [i for i in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if i]
    options._devices = [ProcessGroupGloo.create_device(interface=i) for i in interfaces] or [
        ProcessGroupGloo.create_default_device()
        if hostname is None
        else ProcessGroupGloo.create_device(hostname=hostname)
    ]
    options._threads = threads
    options._timeout = timeout
    return ProcessGroupGloo(PrefixStore(name, store), rank, size, options)


def broadcast_over(group: Any, message: torch.Tensor) -> None:
    """Overwrite a tensor with that of rank 0."""
    if message.numel():
        options = BroadcastOptions()
        options.rootRank = 0
        group.broadcast([message], options).wait()


def gather_over(group: Any, payload: bytes) -> list[bytes]:
    """Give every rank's payload to every rank, in rank order; in one call if all are short."""
    head = len(payload).to_bytes(_LENGTH_BYTES, "little") + payload[:_HEAD_BYTES]
    heads = [to_bytes(each) for each in _gather(group, to_tensor(head, _LENGTH_BYTES + _HEAD_BYTES))]
    lengths = [int.from_bytes(each[:_LENGTH_BYTES], "little") for each in heads]
    firsts = [each[_LENGTH_BYTES:] for each in heads]
    if max(lengths) > _HEAD_BYTES:
        rests = _gather(group, to_tensor(payload[_HEAD_BYTES:], max(lengths) - _HEAD_BYTES))
        firsts = [first + to_bytes(rest) for first, rest in zip(firsts, rests, strict=True)]
    return [message[:length] for message, length in zip(firsts, lengths, strict=True)]


def _gather(group: Any, message: torch.Tensor) -> list[torch.Tensor]:
    outputs = [torch.empty_like(message) for _ in range(group.size())]
    if message.numel():
        group.allgather([outputs], [message], AllgatherOptions()).wait()
    return outputs


def release_groups(groups: list[Any], sockets: Sockets, *, failed: bool) -> None:
    """Release process groups by emptying the list, which holds the only references to them."""
    if failed:
        # Their destructors wait for calls, which end only with the time-out.
        torch_thread(groups.clear, name="pace.close", sockets=sockets).start()
        return
    # Each destructor waits for a thread of Gloo, which looks every 10 ms whether it is to end.
    alone = [[groups.pop()] for _ in range(len(groups))]
    started = []
    for each in alone:
        thread = torch_thread(each.clear, name="pace.close", sockets=sockets)
        try:
            thread.start()
        except RuntimeError:  # an interpreter that ends starts no thread
            each.clear()
        else:
            started.append(thread)
    for thread in started:
        thread.join()
