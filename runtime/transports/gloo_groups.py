"""Gloo's process groups of a transport: connecting and releasing them."""

import contextlib
import datetime
import os
from collections.abc import Callable, Sequence
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
# The tag of a message in the program's own group.
_HERE = int.from_bytes(b"PACE")
# A wait that ends with its time-out would break the program's group.
_NO_LIMIT = datetime.timedelta(days=1)


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


def watch_neighbor(group: Any, names: Sequence[str]) -> tuple[list[BaseException], Callable[[], None]]:
    """Return a list that gets an error if the next rank's process ends before it is connected.

    The second result is what this rank calls once it is connected. In the program's own group, each rank
    expects a byte from the next one. Gloo notices at once when a process ends, whatever it ran. In a group
    without Gloo nobody is watched.

    Parameters
    ----------
    names
        What to call each rank of the group.
    """
    lost: list[BaseException] = []
    size, rank = group.size(), group.rank()
    gloo: Any = None
    with contextlib.suppress(RuntimeError):
        gloo = group._get_backend(torch.device("cpu"))
    is_gloo = isinstance(gloo, ProcessGroupGloo)  # its stub lacks what is called below
    if size == 1 or not is_gloo:
        return lost, lambda: None
    following, received = (rank + 1) % size, torch.zeros(1, dtype=torch.uint8)
    expected = gloo.recv([received], following, _HERE)

    def wait() -> None:
        try:
            expected.wait(_NO_LIMIT)
        except RuntimeError:
            lost.append(RuntimeError(f"the process of {names[following]} has ended"))

    def tell() -> None:
        with contextlib.suppress(RuntimeError):
            gloo.send([torch.zeros(1, dtype=torch.uint8)], (rank - 1) % size, _HERE).wait()

    torch_thread(wait, name="pace.neighbor").start()
    return lost, tell


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
