"""The interface between the engine and the libraries that carry its segments."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from pace.documents.push_pull import PushPull
from pace.errors import CommunicationFailed
from pace.runtime.transports.device import Device
from pace.runtime.transports.peers import Peers

_GLOO_PLACE = re.compile(r"^\[[^]]*\.cc:\d+\] ")

Done = Callable[[BaseException | None], None]

After = Callable[[], Any]

Parts = Sequence[torch.Tensor]
"""Matrices of one dtype, side by side, each with one contiguous row for each rank."""

Discipline = Literal["static", "adaptive", "priority", "overtake"]
"""What decides which segment is sent next.

"static": the plan's order. "adaptive": the plan's order, but rank 0 lets others overtake a late segment.
"priority": of the ready segments, rank 0 takes the one that is needed first, in spite of the plan's order.
"overtake": of the ready segments, the one that is first in the plan; no late segment is waited for.
If segments are matched only by name ("keyed"), every rank decides for itself.
"""

Order = Discipline | Literal["auto"]

Sequencing = Literal["submission", "decision", "keyed"]
"""How all ranks get the same order.

"submission": collectives are matched by name and run when the last rank has submitted them, so rank 0 decides
by submitting last. "decision": collectives are matched by their position in each rank's sequence, so all
ranks must issue the same sequence, and rank 0's choice must be published before it is used. "keyed": segments
are matched by name at any time, so no common order is needed. The transport must know all of them by
``prepare``. It takes all segments that it gets, and chooses which to send next.
"""

Role = Literal["planned", "leader", "follower", "submitter"]
"""What a rank's engine does about the order: follow the plan, choose, follow the choice, or submit at once
because rank 0 chooses by submitting last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCall:
    """An all-reduce that is made in every round.

    Attributes
    ----------
    name
        The name by which ranks match it.
    tensor
        A tensor with its size and dtype.
    turn
        Its place in the order; smaller goes first.
    link
        The number of the parameter server on which the plan places it; None if it does not.
    pushed
        Whether it is sent over parameter servers, in a job that also all-reduces.
    """

    name: str
    tensor: torch.Tensor
    turn: int
    link: int | None = None
    pushed: bool = True


class Transport(Protocol):
    """Carries segments and control messages between ranks; each wrapper has one instance.

    If a control message (``broadcast``, ``broadcast_tensor``, ``gather``) fails or does not end within the
    transport's time-out, it raises ``CommunicationFailed``, which names the rank at fault if it is known. So
    does the creation of a transport.
    """

    rank: int
    size: int
    sequencing: Sequencing
    hand_over_s: float
    """How long before the end of the segment in flight to hand over the next one, in seconds."""
    num_servers: int
    """Number of parameter servers; 0 without any."""
    pushed: frozenset[str] | None
    """Names of gradients that are sent over parameter servers, not all-reduced; None if all go one way."""
    peers: Peers | None
    """The signs of life of ranks; None if ranks share no store."""
    device: Device | None
    """The device that holds segments; None for the host's memory."""
    queues_calls: bool
    """Whether calls run on the device one after another, behind what the communication queue waits for."""
    has_halves: bool
    """Whether it has reduce-scatters and all-gathers."""
    local_bytes: int
    """The most bytes of a group and of a segment in a plan that is made without any measurement."""
    takes_runs: bool
    """Whether `allreduce` also takes `runs`: the elements of the segment that may be nonzero."""

    def allreduce(self, segment: torch.Tensor, name: str, done: Done, after: After | None = None) -> Any:
        """Start to sum `segment` over all ranks in place; returns at once.

        Parameters
        ----------
        segment
            A contiguous tensor. It must be computed already; or, if the transport `queues_calls`, the
            communication queue waits for it.
        done
            Called once, in any thread, with the error or None.
        after
            Called in any thread once the sum is done, before `done` or the returned moment. On a device, work
            that it queues comes after the sum.

        Returns
        -------
        Any
            On a device, the moment at which the sum is done, if it is known beforehand; else None.
        """

    def open_halves(self) -> None:
        """Open connections for reduce-scatters and all-gathers, before the first; every rank must call it."""

    def reduce_scatter(self, parts: Parts, name: str, done: Done) -> Any:
        """Start to sum matrices over all ranks, so that each rank gets the sum of its row; returns at once.

        The other rows are undefined afterwards. See ``allreduce`` for when `parts` must be computed, `done`
        and the result.
        """

    def all_gather(self, parts: Parts, name: str, done: Done) -> Any:
        """Start to give every rank the row of every other rank; returns at once, as ``reduce_scatter``."""

    def prepare(self, calls: Sequence[SegmentCall], *, pace_bytes_per_s: float | None = None) -> None:
        """Announce the segments of the rounds to come, while nothing is in flight; every rank must call it.

        Parameters
        ----------
        pace_bytes_per_s
            The rate at which both ends of a connection to a server send; None for no limit.
        """

    def measure_exchange(self, size_bytes: int) -> PushPull | None:
        """Measure the cost of pushes and pulls; None without parameter servers. Every rank must call it."""

    def decide(self, segment: int | None) -> int:
        """Publish which segment is next (on rank 0), or receive it (other ranks pass None).

        Only if `sequencing` is "decision". Blocks until rank 0 has decided.
        """

    def broadcast(self, payload: bytes | None) -> bytes:
        """Give rank 0's payload to every rank; the others pass None."""

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite a contiguous tensor of bytes or numbers in the host's memory with rank 0's."""

    def gather(self, payload: bytes) -> list[bytes]:
        """Give every rank's payload to every rank, in rank order."""

    def gather_aside(self, payload: bytes, name: str) -> list[bytes]:
        """Give every rank's payload to every rank, matched by name, even while other calls are in progress.

        Any thread may call it. Only if `has_halves`.
        """

    def close(self, *, failed: bool) -> None:
        """End threads and close connections, also of `peers`; with `failed`, abandon calls in progress.

        After a failure, signs of life can be read from `peers` until its ``linger`` or ``release``.
        """


class SumsAlone:
    """The common part of transports that sum among ranks, mostly control messages."""

    rank: int
    size: int
    num_servers: int = 0
    pushed: frozenset[str] | None = None
    local_bytes: int = 4 * 2**20
    takes_runs: bool = False
    queues_calls: bool = False
    peers: Peers | None = None

    def prepare(self, calls: Sequence[SegmentCall], *, pace_bytes_per_s: float | None = None) -> None:
        """Do nothing: calls are matched by position or by name."""

    def measure_exchange(self, size_bytes: int) -> PushPull | None:  # noqa: ARG002
        """Return None: nothing is pushed."""
        return None

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite a tensor in the host's memory with rank 0's; see ``Transport``."""
        raise NotImplementedError

    def broadcast(self, payload: bytes | None) -> bytes:
        """Give rank 0's payload to all ranks."""
        length = torch.tensor([0 if payload is None else len(payload)], dtype=torch.int64, device="cpu")
        self.broadcast_tensor(length)
        message = to_tensor(payload or b"", int(length.item()))
        self.broadcast_tensor(message)
        return to_bytes(message)

    def _explain(self) -> str:
        return self.peers.explain_failure() if self.peers is not None else "the job's store does not answer"

    def _control_message(self, what: str) -> AbstractContextManager[None]:
        return control_message(self.rank, self.size, self._explain, what)

    def _close_peers(self, *, failed: bool) -> None:
        if self.peers is not None:
            self.peers.close(failed=failed)
            if not failed:
                self.peers.release()


def to_tensor(payload: bytes, length: int) -> torch.Tensor:
    """Return bytes as a tensor of this length, padded with zeros."""
    message = torch.zeros(length, dtype=torch.uint8, device="cpu")
    if payload:
        message[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    return message


def to_bytes(message: torch.Tensor) -> bytes:
    """Return the bytes of a tensor in the host's memory."""
    array: Any = message.numpy()
    found: bytes = array.tobytes()
    return found


@contextlib.contextmanager
def control_message(rank: int, size: int, explain: Callable[[], str], what: str) -> Iterator[None]:
    """Convert errors of backends inside to ``CommunicationFailed``, with what is known of the other ranks."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        known = explain()
        raise CommunicationFailed(
            f"rank {rank} of {size}: {what} failed: {reason_of(error)}{'; ' if known else ''}{known}"
        ) from error


def reason_of(error: BaseException) -> str:
    """Return the first line of a backend's error, without Gloo's place in its source and its guesses."""
    lines = str(error).splitlines() or [type(error).__name__]
    return _GLOO_PLACE.sub("", lines[0]).partition(". This is typically caused by")[0]


def role_of(rank: int, sequencing: Sequencing, discipline: Discipline) -> Role:
    """Return a rank's role in choosing the order."""
    if sequencing == "submission" and rank != 0:
        return "submitter"
    if discipline == "static":
        return "planned"
    return "leader" if rank == 0 or sequencing == "keyed" else "follower"
