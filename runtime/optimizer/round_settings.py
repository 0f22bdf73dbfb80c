"""The settings that rounds get from their wrapper."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pace.runtime.gates.model_wrapper import ModelWrapper
from pace.runtime.optimizer.poison import Poison
from pace.runtime.optimizer.reduction import Averaging
from pace.runtime.transports.transport import Discipline, Order, Sequencing


@dataclass(frozen=True, slots=True, kw_only=True)
class Disciplines:
    """What decides which segment is sent next.

    Attributes
    ----------
    segments
        The discipline of all segments, except those of `pushed`.
    pushed
        The discipline of segments that are sent over parameter servers in a job that also all-reduces.
    """

    segments: Discipline
    pushed: Discipline


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """How gradients are summed and updates applied under one plan.

    Attributes
    ----------
    per_group
        Whether each group is updated when its parameters are needed, instead of all groups in ``step()``.
    disciplines
        What decides which segment is sent next.
    averaging
        How sums become what the update uses.
    timeout_s
        How long to wait for a transfer, in seconds.
    name
        Name in threads and collectives.
    on_stall, explain
        See ``Engine``.
    ask
        See ``Reduction.attach``.
    compare_state
        See ``Reduction.attach``.
    clips
        Whether every ``step()`` clips gradients by their norm.
    model_wrapper
        The framework's wrapper of the model, which tells which backward passes only accumulate; None without
        one.
    poison
        Poisons parameters while their updates are pending; None except in mode="check".
    """

    per_group: bool
    disciplines: Disciplines
    averaging: Averaging
    timeout_s: float
    name: str
    on_stall: Callable[[int], None]
    explain: Callable[[], str]
    ask: Callable[[int], None]
    compare_state: Callable[[], None]
    clips: bool = False
    model_wrapper: ModelWrapper | None = None
    poison: Poison | None = None


def choose_disciplines(
    order: Order, sequencing: Sequencing, source: Literal["schedule", "local", "plain"]
) -> Disciplines:
    """Return the disciplines that the user chose, or else those that suit the transport and the plan."""
    if order != "auto":
        return Disciplines(segments=order, pushed=order)
    pushed: Discipline = "priority" if source == "local" else "overtake"
    if sequencing == "keyed":  # no rank waits for the choice of another
        return Disciplines(segments=pushed, pushed=pushed)
    # Over torch.distributed every choice is a broadcast that must end before the segment starts.
    if sequencing == "decision" or source == "plain":
        return Disciplines(segments="static", pushed=pushed)
    return Disciplines(segments="adaptive" if source == "schedule" else "priority", pushed=pushed)
