"""What the engine asks of whatever carries its segments."""

from collections.abc import Callable
from typing import Literal, Protocol

import torch

from pace.runtime.peers import Store

Done = Callable[[BaseException | None], None]

Discipline = Literal["static", "adaptive", "priority"]
"""Who decides which segment goes next.

"static": the plan. "adaptive": the plan, but rank 0 lets others overtake a segment that is late.
"priority": rank 0 takes what is needed first among all that is ready, whatever the plan's order.
"""

Order = Discipline | Literal["auto"]

Sequencing = Literal["submission", "decision"]
"""How a transport learns rank 0's choice.

"submission": a collective runs when the last rank has submitted it, matched by name, so rank 0 decides
by being the last. "decision": collectives are matched by their position in each rank's sequence, so
all ranks must issue the same sequence and rank 0's choice must be published before it is used.
"""


class Transport(Protocol):
    """Carries segments and a few control messages between ranks; one instance a wrapper."""

    rank: int
    size: int
    sequencing: Sequencing
    hand_over_s: float
    """How long before the segment under way ends the next is best handed over."""
    peer_store: Store | None
    """A key-value store of all ranks, kept by the first; None where there is none."""

    def allreduce(self, segment: torch.Tensor, name: str, done: Done) -> None:
        """Start to sum `segment` over all ranks in place; returns at once.

        Calls `done` from any thread, once, with the error if there was one.
        """

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

    def close(self, *, failed: bool) -> None:
        """Let go of threads and connections; with `failed`, of calls under way too."""
