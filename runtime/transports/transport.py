"""What the engine asks of whatever carries its segments."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from pace.documents.push_pull import PushPull
from pace.errors import CommunicationFailed
from pace.runtime.transports.device import Device
from pace.runtime.transports.peers import Peers

Done = Callable[[BaseException | None], None]

After = Callable[[], Any]

Parts = Sequence[torch.Tensor]
"""Matrices of one dtype side by side, each with a contiguous row for every rank."""

Discipline = Literal["static", "adaptive", "priority", "overtake"]
"""Who decides which segment goes next.

"static": the plan. "adaptive": the plan, but rank 0 lets others overtake a segment that is late.
"priority": rank 0 takes what is needed first among all that is ready, whatever the plan's order.
"overtake": what the plan has first among all that is ready; nobody waits for what is late.
Where segments are matched by name alone ("keyed"), every rank decides for itself.
"""

Order = Discipline | Literal["auto"]

Sequencing = Literal["submission", "decision", "keyed"]
"""How a transport learns rank 0's choice.

"submission": a collective runs when the last rank has submitted it, matched by name, so rank 0 decides
by being the last. "decision": collectives are matched by their position in each rank's sequence, so
all ranks must issue the same sequence and rank 0's choice must be published before it is used. "keyed":
segments are matched by name whenever they come, so no order has to be common; the transport must be told of
all of them with ``prepare``, and then takes what it is given and chooses itself what it sends next.
"""

Role = Literal["planned", "leader", "follower", "submitter"]
"""What a rank's engine does about the order: keeps to the plan, chooses, does what was chosen, or submits at
once because rank 0 chooses by being last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCall:
    """An all-reduce that will be made again and again.

    Attributes
    ----------
    tensor
        Of the size and dtype that it will have.
    turn
        Its place in the order; smaller goes first.
    link
        The parameter server that the plan places it on, if it does.
    pushed
        Whether it goes over parameter servers, where there are both ways.
    """

    name: str
    tensor: torch.Tensor
    turn: int
    link: int | None = None
    pushed: bool = True


class Transport(Protocol):
    """Carries segments and a few control messages between ranks; one instance a wrapper.

    Control messages (``broadcast``, ``broadcast_tensor``, ``gather``) that fail, or do not end within the
    transport's time-out, raise ``CommunicationFailed``, which names the rank at fault where that is known. So
    does building a transport.
    """

    rank: int
    size: int
    sequencing: Sequencing
    hand_over_s: float
    """How long before the segment under way ends the next is best handed over."""
    num_servers: int
    """How many parameter servers hold segments; 0 where there are none."""
    pushed: frozenset[str] | None
    """Which gradients go over parameter servers and are not all-reduced; None where all go one way."""
    peers: Peers | None
    """Who is alive and how far; None where ranks have no store in common."""
    device: Device | None
    """Where segments lie; None for the host's memory."""
    has_halves: bool
    """Whether it can reduce-scatter and gather."""
    takes_runs: bool
    """Whether `allreduce` also takes `runs`: the elements of the segment outside of which all are zero."""

    def allreduce(self, segment: torch.Tensor, name: str, done: Done, after: After | None = None) -> Any:
        """Start to sum `segment` over all ranks in place; returns at once.

        Parameters
        ----------
        segment
            Computed: what is queued on a device is not waited for.
        done
            Called from any thread, once, with the error if there was one.
        after
            Called once the sum is in place, from any thread, before `done` or the moment that is returned. On
            a device, "in place" is meant for what it queues.

        Returns
        -------
        On a device, the moment when the sum is in place, if that is known beforehand; else None.
        """

    def open_halves(self) -> None:
        """Connect what carries the two halves, before any is asked for; every rank alike."""

    def reduce_scatter(self, parts: Parts, name: str, done: Done) -> None:
        """Start to sum matrices over all ranks, so that each has the sum of its own row; returns at once.

        What is in the other rows afterwards is undefined.
        """

    def all_gather(self, parts: Parts, name: str, done: Done) -> None:
        """Start to give every rank the row of every other rank; returns at once."""

    def prepare(self, calls: Sequence[SegmentCall], *, pace_bytes_per_s: float | None = None) -> None:
        """Learn which segments will be summed from now on, with nothing under way; every rank alike.

        Parameters
        ----------
        pace_bytes_per_s
            How fast the plan has either end of a connection to a server send.
        """

    def measure_exchange(self, size_bytes: int) -> PushPull | None:
        """Measure what pushes and pulls cost; None where all-reduces are what counts. Every rank alike."""

    def decide(self, segment: int | None) -> int:
        """Rank 0 publishes which segment is next; every other rank passes None and gets it.

        Only where `sequencing` is "decision"; blocks until rank 0 has decided.
        """

    def broadcast(self, payload: bytes | None) -> bytes:
        """Give rank 0's payload to every rank; the others pass None."""

    def broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Overwrite a contiguous tensor of bytes or numbers in the host's memory with rank 0's."""

    def gather(self, payload: bytes) -> list[bytes]:
        """Give every rank's payload to every rank, in rank order."""

    def gather_aside(self, payload: bytes, name: str) -> list[bytes]:
        """Give every rank's payload to every rank; matched by name, whatever else is under way.

        From any thread. Only where there are halves.
        """

    def close(self, *, failed: bool) -> None:
        """Let go of threads and connections, `peers` included; with `failed`, of calls under way too.

        After a failure `peers` can be asked still, until its ``linger`` or ``release``.
        """


class SumsAlone:
    """What transports that sum among ranks have in common: mostly control messages."""

    rank: int
    size: int
    num_servers: int = 0
    pushed: frozenset[str] | None = None
    takes_runs: bool = False
    peers: Peers | None = None

    def prepare(self, calls: Sequence[SegmentCall], *, pace_bytes_per_s: float | None = None) -> None:
        """Nothing to prepare: calls are matched by position or by name."""

    def measure_exchange(self, size_bytes: int) -> PushPull | None:  # noqa: ARG002
        """Nothing is pushed."""
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
    """Return bytes as a tensor of this length, with zeros behind them."""
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
    """Turn what backends raise inside into ``CommunicationFailed`` with what is known of the other ranks."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        known = explain()
        raise CommunicationFailed(
            f"rank {rank} of {size}: {what} failed: {lines[0]}{'; ' if known else ''}{known}"
        ) from error


def role_of(rank: int, sequencing: Sequencing, discipline: Discipline) -> Role:
    """Return what a rank does about the order."""
    if sequencing == "submission" and rank != 0:
        return "submitter"
    if discipline == "static":
        return "planned"
    return "leader" if rank == 0 or sequencing == "keyed" else "follower"
