"""What rounds need to know of the wrapper that runs them."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from pace.runtime.gates.model_wrapper import ModelWrapper
from pace.runtime.optimizer.gradients.averaging import Averaging
from pace.runtime.transports.transport import Discipline, Order, Sequencing


@dataclass(frozen=True, slots=True, kw_only=True)
class Disciplines:
    """Who decides which segment goes next.

    Attributes
    ----------
    segments
        In general.
    pushed
        For what goes over parameter servers in a job that also all-reduces.
    """

    segments: Discipline
    pushed: Discipline


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """How gradients are summed and updates applied under one plan.

    Attributes
    ----------
    per_group
        Whether groups are updated one by one as they are needed, instead of all in ``step()``.
    disciplines
        Who decides which segment goes next.
    name
        For threads and collectives.
    on_stall, explain
        See ``Engine``.
    ask
        See ``Reduction.attach``.
    clips
        Whether every ``step()`` clips gradients by their norm.
    model_wrapper
        What is around the model and says which backward passes only add up; None without one.
    held_state
        Returns those of some parameters of whose optimizer state somebody else refers to a part.
    """

    per_group: bool
    disciplines: Disciplines
    averaging: Averaging
    timeout_s: float
    name: str
    on_stall: Callable[[int], None]
    explain: Callable[[], str]
    ask: Callable[[int], None]
    held_state: Callable[[Sequence[torch.Tensor]], Collection[torch.Tensor]]
    clips: bool = False
    model_wrapper: ModelWrapper | None = None


def choose_disciplines(
    order: Order, sequencing: Sequencing, source: Literal["schedule", "local", "plain"]
) -> Disciplines:
    """Return who decides: what the user asked for, or what suits the transport and the plan."""
    if order != "auto":
        return Disciplines(segments=order, pushed=order)
    pushed: Discipline = "priority" if source == "local" else "overtake"
    if sequencing == "keyed":  # no rank waits for another's choice
        return Disciplines(segments=pushed, pushed=pushed)
    # Over torch.distributed every choice is a broadcast that must end before the segment starts.
    if sequencing == "decision" or source == "plain":
        return Disciplines(segments="static", pushed=pushed)
    return Disciplines(segments="adaptive" if source == "schedule" else "priority", pushed=pushed)


class Profiling(Protocol):
    """Says whether iterations are being profiled."""

    @property
    def aside(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What communication happens in while they are; None while they are not."""
