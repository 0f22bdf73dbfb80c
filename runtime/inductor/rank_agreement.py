"""All ranks compile the same graph and follow rank 0's plan, or all ranks raise the same error."""

import contextlib
import pickle
import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from pace.errors import (
    CommunicationFailed,
    InvalidGraph,
    InvalidOptions,
    InvalidSchedule,
    InvalidUse,
    PaceError,
    ScheduleMismatch,
)
from pace.runtime.inductor.fx_program import FxProgram
from pace.runtime.transports.gloo_groups import connect_group, gather_over
from pace.runtime.transports.job_store import given_up_on_failure, group_name, meeting_store

T = TypeVar("T")

_SHARED: dict[str, type[PaceError]] = {
    kind.__name__: kind
    for kind in (InvalidGraph, InvalidOptions, InvalidSchedule, InvalidUse, ScheduleMismatch)
}


class CompilingRanks:
    """The ranks that compile the same graphs: they exchange small objects over Gloo.

    Every rank must create it. Collectives of the job do not run in its process group.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        members: Any = dist.group.WORLD if group is None else group
        self.ranks = dist.get_process_group_ranks(members)
        self.rank = dist.get_rank(members)
        self._timeout = timedelta(seconds=timeout_s)
        with self._reaching("the start"):
            store = meeting_store(f"planner/{group_name(members)}", self.rank, self._timeout)
            with given_up_on_failure(store):
                self._group = connect_group(
                    store, "planner", self.rank, len(self.ranks), timeout=self._timeout
                )
        self.hosts: list[str] = self.gather(socket.gethostname(), "the start")

    def gather(self, value: T, what: str) -> list[T]:
        """Return the values of all ranks.

        Raises
        ------
        CommunicationFailed
            If a rank does not come here in time; the message says which.
        """
        with self._reaching(what):
            self._group.monitored_barrier(self._timeout, True)
            return [pickle.loads(each) for each in gather_over(self._group, pickle.dumps(value))]

    @contextlib.contextmanager
    def _reaching(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            raise CommunicationFailed(
                f"the ranks did not all reach {what} within {self._timeout.total_seconds():g} s ({first}): "
                "all ranks must compile the same graphs, so give them batches of the same shapes"
            ) from error

    def together(self, call: Callable[[], T], what: str) -> T:
        """Call something on every rank; if any raise, all ranks raise the error of the first."""
        result: list[T] = []
        raised: Exception | None = None
        try:
            result.append(call())
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            raised = error
        stated = None if raised is None else (type(raised).__name__, str(raised))
        for rank, error_of_rank in zip(self.ranks, self.gather(stated, what), strict=True):
            if error_of_rank is None:
                continue
            kind, text = error_of_rank
            if raised is not None and stated == error_of_rank:
                raise raised
            raise _SHARED.get(kind, InvalidUse)(f"rank {rank}: {text}") from raised
        return result[0]

    def from_first(self, call: Callable[[], T], what: str) -> T:
        """Return on every rank what a call returns on the first; all raise if it raises."""
        mine = self.together(lambda: call() if self.rank == 0 else None, what)
        found: Any = self.gather(mine, what)[0]
        result: T = found
        return result

    def refuse_other_graphs(self, program: FxProgram, what: str) -> None:
        """Compare the graphs of all ranks.

        Raises
        ------
        ScheduleMismatch
            On every rank, if one differs; the message names the rank and the first node that differs.
        """
        hashes = self.gather(program.sha256, what)
        if len(set(hashes)) == 1:
            return
        lines = self.gather(program.lines, what)
        for rank, theirs in zip(self.ranks, lines, strict=True):
            place = first_difference(theirs, lines[0])
            if place is not None:
                raise ScheduleMismatch(
                    f"{what} of rank {rank} differs from that of rank {self.ranks[0]}: "
                    f"it has {_node(theirs, place)} instead of {_node(lines[0], place)}; "
                    "all ranks must compile the same model, with shards of the same sizes"
                )


def first_difference(one: tuple[str, ...], other: tuple[str, ...]) -> int | None:
    """Return the place of the first line that differs; None if none does."""
    for place in range(max(len(one), len(other))):
        if one[place : place + 1] != other[place : place + 1]:
            return place
    return None


def _node(lines: tuple[str, ...], place: int) -> str:
    if place >= len(lines):
        return "no more node"
    name, _, text = lines[place].partition(": ")
    return f'node "{name}" ({text})'
