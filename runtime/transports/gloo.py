"""torch.distributed as a transport.

It uses its own process groups, so that the user's collectives never come between the runtime's.
"""

import datetime
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, Store

from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.transports.device import Device
from pace.runtime.transports.gloo_groups import (
    broadcast_over,
    connect_group,
    gather_over,
    release_groups,
    watch_neighbor,
)
from pace.runtime.transports.job_store import forget_connection, given_up_on_failure, group_name, open_stores
from pace.runtime.transports.peers import Peers
from pace.runtime.transports.ring import Ring
from pace.runtime.transports.signs_of_life import names_in_job
from pace.runtime.transports.torch_threads import Sockets, call_within, keep_thread_state
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

# Segments in flight at the same time share the network, and the urgent one ends as late as the other. With
# more than one thread, two large segments in flight made a window of 0.5 s 25 % longer on the testbed.
_THREADS = 1


class GlooTransport(SumsAlone):
    """Sums tensors in the host's memory with Gloo.

    Gloo's own threads report completions. There are three process groups, because calls on one group must
    have one order and these come from different threads: segments, rank 0's decisions (opened when first
    needed) and control messages.
    """

    sequencing: Sequencing = "decision"
    hand_over_s = 1e-3
    device: Device | None = None
    has_halves: bool = True

    @property
    def other_groups(self) -> dict[str, datetime.timedelta]:
        """Names and time-outs of further process groups that a transport needs."""
        return {}

    def __init__(self, *, timeout_s: float, process_group: dist.ProcessGroup | None = None) -> None:
        require_torch(TRAINING)
        if not dist.is_initialized():
            raise InvalidUse("call torch.distributed.init_process_group() before DistributedOptimizer(...)")
        group: Any = dist.group.WORLD if process_group is None else process_group
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise InvalidUse(
                f"rank {dist.get_rank()} is not in the process group: only its members wrap an optimizer for"
                " it; use the torch optimizer itself on other ranks"
            )
        if not isinstance(group, dist.ProcessGroup):
            raise InvalidOptions(f"process_group is {group!r}; a torch.distributed.ProcessGroup is needed")
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self._timeout = datetime.timedelta(seconds=timeout_s)
        self._segments: Any = None
        self._control: Any = None
        self._decisions: Any = None
        self._ring: Ring | None = None
        self._aside: Ring | None = None
        self._other_groups: dict[str, Any] = {}
        self._sockets = Sockets()
        self._sum = AllreduceOptions()
        self._sum.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM)
        members = dist.get_process_group_ranks(group)
        try:
            with self._control_message("connecting to the other ranks"):
                self._connect_all(group, members)
        except BaseException:
            forget_connection()
            self.close(failed=True)
            if self.peers is not None:
                self.peers.linger()
            raise

    def _connect_all(self, group: dist.ProcessGroup, members: list[int]) -> None:
        deadline = time.monotonic() + self._timeout.total_seconds()
        stores = call_within(
            self._timeout.total_seconds(),
            lambda: open_stores(group_name(group), self.rank, self._timeout),
            name="pace.store",
        )
        keeper, names = members.index(0) if 0 in members else None, names_in_job(members)
        self.peers = Peers(
            stores.peers, self.rank, self.size, keeper=keeper, names=names, sockets=stores.sockets
        )
        lost, tell = watch_neighbor(group, names)
        # Only this rank's neighbor notices at once that it has ended.
        self.peers.follow_failures(lambda _: lost.append(RuntimeError("another rank has failed")))
        # Through the other connection, as the thread that connects may still wait in the first one.
        with given_up_on_failure(stores.peers):
            with self._sockets.opened_here(), self.peers.meeting(self._timeout.total_seconds()):
                connected = call_within(
                    max(deadline - time.monotonic(), 0.0),
                    lambda: [
                        self._connect(stores.meetings, name, threads)
                        for name, threads in (
                            ("segments", _THREADS),
                            ("control", 1),
                            ("decisions", 1),
                            *((name, 1) for name in self.other_groups),
                        )
                    ],
                    name="pace.connect",
                    errors=lost,
                )
            tell()
            self._segments, self._control, self._decisions, *others = connected
            self._other_groups = dict(zip(self.other_groups, others, strict=True))
            self._connect_sums(stores.meetings, group)

    def _connect_sums(self, store: Store, group: dist.ProcessGroup) -> None:
        """Connect what sums tensors that are not in the host's memory."""

    def _connect(self, store: Store, name: str, threads: int) -> Any:
        timeout = self.other_groups.get(name, self._timeout)
        return connect_group(store, name, self.rank, self.size, timeout=timeout, threads=threads)

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
            keep_thread_state()
            error: BaseException | None = None
            try:
                future.value()
                if after is not None:
                    after()
            except Exception as raised:  # any error is passed on to waiting threads
                error = raised
            work = None
            done(error)

        work.get_future().add_done_callback(complete)

    @property
    def ring(self) -> Ring:
        """The ring for reduce-scatters and all-gathers; opened when first needed."""
        if self._ring is None:
            self._ring = Ring(self._segments, self.rank, self.size)
        return self._ring

    def open_halves(self) -> None:
        """Do nothing: the ring uses existing connections."""

    def reduce_scatter(self, parts: Parts, name: str, done: Done) -> None:
        """Start to sum matrices by rows; see ``Transport``."""
        self.ring.reduce_scatter(parts, name, done)

    def all_gather(self, parts: Parts, name: str, done: Done) -> None:
        """Start to give every rank all rows; see ``Transport``."""
        self.ring.all_gather(parts, name, done)

    def gather_aside(self, payload: bytes, name: str) -> list[bytes]:
        """Give every rank's payload to every rank; see ``Transport``."""
        if self._aside is None:
            # A separate ring: the other one may be waiting for a rank that waits for this call.
            self._aside = Ring(self._segments, self.rank, self.size)
        with self._control_message("a gathering"):
            lengths = self._rows(
                torch.tensor([len(payload)], dtype=torch.int64, device="cpu"), f"{name}.lengths"
            )
            longest = int(lengths.max().item())
            rows = self._rows(to_tensor(payload, longest), name)
        return [to_bytes(row)[: int(length.item())] for row, length in zip(rows, lengths, strict=True)]

    def _rows(self, mine: torch.Tensor, name: str) -> torch.Tensor:
        assert self._aside is not None
        rows = torch.zeros((self.size, len(mine)), dtype=mine.dtype, device="cpu")
        rows[self.rank] = mine
        errors: list[BaseException | None] = []
        ended = threading.Event()

        def done(error: BaseException | None) -> None:
            errors.append(error)
            ended.set()

        self._aside.all_gather([rows], f"aside.{name}", done)
        if not ended.wait(self._timeout.total_seconds()):
            raise RuntimeError(f"no end within {self._timeout.total_seconds():g} s")
        if errors[0] is not None:
            raise errors[0]
        return rows

    def decide(self, segment: int | None) -> int:
        """Publish or receive rank 0's choice; see ``Transport``."""
        message = torch.tensor([-1 if segment is None else segment], dtype=torch.int64, device="cpu")
        broadcast_over(self._decisions, message)
        return int(message.item())

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite a tensor in the host's memory with rank 0's; see ``Transport``."""
        with self._control_message("a broadcast"):
            broadcast_over(self._control, tensor)

    def gather(self, payload: bytes) -> list[bytes]:
        """Give every rank's payload to every rank."""
        return self._gather_over(self._control, payload)

    def _gather_over(self, group: Any, payload: bytes) -> list[bytes]:
        with self._control_message("a gathering"):
            return gather_over(group, payload)

    def close(self, *, failed: bool) -> None:
        """Close the process groups; see ``Transport``."""
        self._close_peers(failed=failed)
        for ring in (self._ring, self._aside):
            if ring is not None:
                ring.close(failed=failed)
        groups = [self._segments, self._control, self._decisions, *self._other_groups.values()]
        self._segments = self._control = self._decisions = None
        self._other_groups = {}
        release_groups(groups, self._sockets, failed=failed)
