"""Horovod as a transport: collectives are matched by name, and rank 0 decides by submitting last."""

import collections
import contextlib
import datetime
import itertools
import math
import os
import queue
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import horovod.torch as hvd
import torch
from torch._C._distributed_c10d import PrefixStore, TCPStore

from pace.runtime.event_log import log
from pace.runtime.transports.device import Device, apart
from pace.runtime.transports.job_store import given_up_on_failure, new_name
from pace.runtime.transports.peers import Peers
from pace.runtime.transports.ring import GlooHalves
from pace.runtime.transports.signs_of_life import names_in_job, no_store
from pace.runtime.transports.torch_threads import Sockets, call_within, torch_thread
from pace.runtime.transports.torch_versions import TRAINING, require_torch
from pace.runtime.transports.transport import (
    After,
    Done,
    Parts,
    Sequencing,
    SumsAlone,
    to_bytes,
    to_tensor,
)

_STORE_TIMEOUT_S = 30.0
_ADDRESS_BYTES = 300
# Half of the time that hvd.synchronize() itself sleeps between two polls.
_LOOK_S = 5e-4


# Names distinguish the instances. Counted by the ranks of the process set: they may be in different numbers
# of other sets, and Horovod gives the number of a removed set to the next one. Used without a store; ranks
# must then create their transports in the same order, and none may fail alone.
_instances: dict[str, Iterator[int]] = collections.defaultdict(itertools.count)


# The store for signs of life, after `open_store` was called; None if that failed.
_store: TCPStore | None = None
_store_opened = False


class _Call(NamedTuple):
    handle: int
    done: Done
    after: After | None
    take: Callable[[Any], None] | None = None


class HorovodTransport(SumsAlone):
    """Sums tensors with the library that Horovod was built for.

    Horovod has no completion callback, so one thread polls all handles in flight. They end in rank 0's order,
    not in the order of their submission on this rank.

    Parameters
    ----------
    process_set
        The processes that train together. Rank and size are those within the set.
    timeout_s
        A control message that takes longer, in seconds, fails.

    Attributes
    ----------
    scale
        Every sum is multiplied by this; the same on all ranks.
    """

    def __init__(
        self,
        process_set: Any = hvd.global_process_set,
        *,
        timeout_s: float,
        device: Device | None = None,
    ) -> None:
        require_torch(TRAINING)
        # One cycle of Horovod, its negotiation, and one poll of this transport.
        self.hand_over_s = _cycle_s() + 1.5e-3
        self.rank: int = process_set.rank()
        self.size: int = process_set.size()
        self._process_set = process_set
        # Horovod's broadcast counts roots over all processes, not within the set.
        self._root: int = process_set.ranks[0]
        self.scale = 1.0
        self.device = device
        self.has_halves = device is None
        self._calls = itertools.count()
        self._timeout_s = timeout_s
        self._prefix = "pace"
        members = "-".join(map(str, process_set.ranks))
        with self._control_message("connecting to the other ranks"):
            self._prefix = f"pace.{members}.{self._number_of(members)}"
        self._halves: GlooHalves | None = None
        self.sequencing: Sequencing = "submission"
        self._waiting: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = torch_thread(self._watch, name=f"{self._prefix}.completions")
        self._thread.start()
        try:
            with self._control_message("connecting to the other ranks"):
                self.peers = self._open_peers()
            # All ranks are here, or the error names those that are not.
            with (
                contextlib.nullcontext()
                if _store is None
                else given_up_on_failure(PrefixStore(self._meeting, _store)),
                self.peers.meeting(timeout_s) if self.peers is not None else contextlib.nullcontext(),
            ):
                self.gather(b"")
        except BaseException:
            self.close(failed=True)
            if self.peers is not None:
                self.peers.linger()
            raise

    def _number_of(self, members: str) -> str:
        """Return the number of this transport among those of the same ranks; equal on all of them."""
        if _store is None:
            return str(next(_instances[members]))
        store: Any = _store
        self._meeting: str = call_within(
            self._timeout_s, lambda: new_name(store, members, self.rank), name="pace.store"
        )
        return self._meeting.rpartition("/")[2]

    def _open_store(self) -> Any:
        """Return a separate connection to the job's store, which must exist."""
        connect: Any = _store.clone  # type: ignore[union-attr]  # missing in its stub
        return PrefixStore(self._prefix, call_within(self._timeout_s, connect, name="pace.store"))

    def open_halves(self) -> None:
        """Connect a ring if ranks can reach one another; otherwise Horovod's own collectives are used.

        On the host, Horovod's reduce-scatter sends as many bytes as its all-reduce.
        """
        with self._control_message("connecting to the other ranks"):
            if self._halves is not None or not all(self.gather(b"store" if _store is not None else b"")):
                return
            timeout = datetime.timedelta(seconds=self._timeout_s)
            store = self._open_store()
            store.set_timeout(timeout)
            self._halves = call_within(
                self._timeout_s,
                lambda: GlooHalves(
                    store,
                    self.rank,
                    self.size,
                    timeout=timeout,
                    hostname=_own_address(),
                    scale=self.scale,
                ),
                name="pace.connect",
            )
        self.sequencing = "decision"
        self.hand_over_s = GlooHalves.hand_over_s

    def _open_peers(self) -> Peers | None:
        if _store is None:
            return None
        sockets = Sockets()
        with sockets.opened_here():
            store = self._open_store()
        members = self._process_set.ranks
        keeper = members.index(0) if 0 in members else None
        return Peers(store, self.rank, self.size, keeper=keeper, names=names_in_job(members), sockets=sockets)

    def allreduce(self, segment: torch.Tensor, name: str, done: Done, after: After | None = None) -> Any:
        """Start to sum a segment; see ``Transport``."""
        # Horovod waits for work queued on the current stream, and compute is queued far ahead.
        with apart(self.device):
            handle = hvd.allreduce_async_(
                segment,
                name=f"{self._prefix}.{name}",
                op=hvd.Sum,
                postscale_factor=self.scale,
                process_set=self._process_set,
            )
        self._waiting.put(_Call(handle, done, after))

    def reduce_scatter(self, parts: Parts, name: str, done: Done) -> None:
        """Start to sum matrices by rows; see ``Transport``."""
        if self._halves is not None:
            self._halves.reduce_scatter(parts, name, done)
            return
        handle = hvd.reducescatter_async(
            _side_by_side(parts),
            name=f"{self._prefix}.{name}",
            op=hvd.Sum,
            postscale_factor=self.scale,
            process_set=self._process_set,
        )

        def take(row: torch.Tensor) -> None:
            for part, piece in zip(
                parts, torch.split(row.view(-1), [p.shape[1] for p in parts]), strict=True
            ):
                part[self.rank].copy_(piece)

        self._waiting.put(_Call(handle, done, None, take))

    def all_gather(self, parts: Parts, name: str, done: Done) -> None:
        """Start to give every rank all rows; see ``Transport``."""
        if self._halves is not None:
            self._halves.all_gather(parts, name, done)
            return
        mine = _side_by_side([part[self.rank : self.rank + 1] for part in parts])
        handle = hvd.allgather_async(mine, name=f"{self._prefix}.{name}", process_set=self._process_set)

        def take(rows: torch.Tensor) -> None:
            for part, piece in zip(parts, torch.split(rows, [p.shape[1] for p in parts], dim=1), strict=True):
                part.copy_(piece)

        self._waiting.put(_Call(handle, done, None, take))

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
                except Exception as raised:  # any error is passed on to waiting threads
                    error = raised
                call.done(error)

    def _finish(self, call: "_Call") -> None:
        with apart(self.device):
            output = hvd.synchronize(call.handle)
            if call.take is not None:
                with torch.no_grad():
                    call.take(output)
            if call.after is not None:
                call.after()
            moment = None if self.device is None else self.device.now()
        if moment is not None:
            moment.synchronize()

    def _submitted(self, *, wait: bool) -> Iterator["_Call | None"]:
        """Yield the calls submitted since the last time; with `wait`, at least one."""
        if wait:
            yield self._waiting.get()
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._waiting.get_nowait()

    def decide(self, segment: int | None) -> int:
        """Publish or receive rank 0's choice; see ``Transport``."""
        assert self._halves is not None, "Horovod's order is rank 0's order of submission"
        return self._halves.decide(segment)

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite a tensor in the host's memory with rank 0's; see ``Transport``."""
        if not tensor.numel():
            return
        with self._control_message("a broadcast"):
            handle = hvd.broadcast_async_(
                tensor, self._root, name=self._control_name(), process_set=self._process_set
            )
            _end_of(handle, self._timeout_s)

    def gather(self, payload: bytes) -> list[bytes]:
        """Give every rank's payload to every rank."""
        return self._gathered(payload, None)

    def gather_aside(self, payload: bytes, name: str) -> list[bytes]:
        """Give every rank's payload to every rank; see ``Transport``."""
        return self._gathered(payload, f"{self._prefix}.aside.{name}")

    def _gathered(self, payload: bytes, name: str | None) -> list[bytes]:
        of_lengths = None if name is None else f"{name}.lengths"
        lengths = self._allgather(
            torch.tensor([len(payload)], dtype=torch.int64, device="cpu"), of_lengths
        ).tolist()
        joined = to_bytes(self._allgather(to_tensor(payload, len(payload)), name))
        ends = list(itertools.accumulate(lengths))
        return [joined[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def _allgather(self, tensor: torch.Tensor, name: str | None = None) -> Any:
        with self._control_message("a gathering"):
            name = name or self._control_name()
            handle = hvd.allgather_async(tensor, name=name, process_set=self._process_set)
            return _end_of(handle, self._timeout_s)

    def _explain(self) -> str:
        if self.peers is not None:
            return self.peers.explain_failure()
        return "" if _store is None else no_store("rank 0 of the whole job")

    def _control_name(self) -> str:
        return f"{self._prefix}.control.{next(self._calls)}"

    def close(self, *, failed: bool) -> None:
        """Stop waiting for handles; see ``Transport``."""
        self._close_peers(failed=failed)
        if self._halves is not None:
            self._halves.close(failed=failed)
        self._waiting.put(None)
        self._thread.join(timeout=1.0 if failed else None)


def _side_by_side(parts: Parts) -> torch.Tensor:
    """Return a contiguous copy of the matrices side by side."""
    return torch.cat([part.detach() for part in parts], dim=1).contiguous()


def open_store(*, anew: bool) -> None:
    """Open a store on rank 0 and connect every rank to it, as Horovod's own store is not accessible.

    Every rank must call it. Without a store training works, but errors do not name the rank at fault.

    Parameters
    ----------
    anew
        Whether Horovod was initialized just now. Otherwise an open store is kept.
    """
    global _store, _store_opened
    if _store_opened and not anew:
        return
    _store, _store_opened = None, True
    _instances.clear()
    address = torch.zeros(_ADDRESS_BYTES, dtype=torch.uint8, device="cpu")
    if hvd.rank() == 0:
        with contextlib.suppress(RuntimeError, OSError):
            host = _own_address()
            _store = _connect(host, 0, server=True)
            address = to_tensor(f"{host}:{_store.port}".encode(), _ADDRESS_BYTES)
    with contextlib.suppress(RuntimeError, OSError):
        _end_of(hvd.broadcast_async_(address, 0, name="pace.store"), _STORE_TIMEOUT_S)
        host, _, port = to_bytes(address).rstrip(b"\0").decode().rpartition(":")
        if hvd.rank() != 0 and port:
            _store = _connect(host, int(port), server=False)
    if _store is None and hvd.rank() == 0:
        log.warning("pace.no_peer_store", consequence="errors will not name the rank at fault")


def _connect(host: str, port: int, *, server: bool) -> TCPStore:
    timeout = datetime.timedelta(seconds=_STORE_TIMEOUT_S)
    return TCPStore(host, port, hvd.size(), server, timeout, wait_for_workers=False)


def _end_of(handle: Any, timeout_s: float) -> Any:
    """Wait for a handle with a time limit, which Horovod's own ``synchronize`` does not have."""
    deadline = time.monotonic() + timeout_s
    while not hvd.poll(handle):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"no end within {timeout_s:g} s")
        time.sleep(_LOOK_S)
    return hvd.synchronize(handle)


def _cycle_s() -> float:
    """Return the length of Horovod's cycle in seconds: as set, or its default of 1 ms."""
    with contextlib.suppress(ValueError):
        told_ms = float(os.environ.get("HOROVOD_CYCLE_TIME", ""))
        if 0.0 <= told_ms < math.inf:
            return told_ms * 1e-3
    return 1e-3


def _own_address() -> str:
    """Return the address by which other ranks reach this one: that of its route to Horovod's rendezvous."""
    rendezvous = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR") or socket.gethostname()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((rendezvous, 9))
        return str(probe.getsockname()[0])
