"""What rounds need to know of the wrapper that runs them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pace.runtime.optimizer.averaging import Averaging
from pace.runtime.transports.transport import Discipline


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """How gradients are summed and updates applied under one plan.

    Attributes
    ----------
    per_group
        Whether groups are updated one by one as they are needed, instead of all in ``step()``.
    discipline
        Who decides which segment goes next.
    name
        For threads and collectives.
    on_stall, explain
        See ``Engine``.
    ask
        See ``Reduction.attach``.
    """

    per_group: bool
    discipline: Discipline
    averaging: Averaging
    timeout_s: float
    name: str
    on_stall: Callable[[int], None]
    explain: Callable[[], str]
    ask: Callable[[int], None]


class Profiling(Protocol):
    """Says whether iterations are being profiled."""

    @property
    def aside(self) -> Callable[[], AbstractContextManager[None]] | None:
        """What communication happens in while they are; None while they are not."""
