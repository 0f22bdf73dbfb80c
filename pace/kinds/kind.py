"""What a kind of problem is: how it is planned, checked, told and drawn."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pace.documents.base import refuse_other
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import Options, SimulationOptions
from pace.documents.profile import Profile
from pace.documents.schedule import Exchange, Schedule
from pace.errors import InvalidOptions, InvalidProfile, PaceError

if TYPE_CHECKING:
    from pace.whatif.grid import PolicyGrid

AnyProblem = Profile | CollectiveGraph
Row = tuple[str, str]
Details = Mapping[str, tuple[str, Callable[[Any], Any], Callable[[Any], str]]]


class PolicyRun(Protocol):
    """Windows of a problem under a policy."""

    @property
    def iteration_s(self) -> float:
        """Mean length of a window in seconds."""
        ...

    @property
    def iterations_s(self) -> Any:
        """Lengths of all windows in seconds, of shape (windows,)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPolicy:
    """One policy's windows.

    Attributes
    ----------
    policy
        Its name.
    knobs
        The knobs that were set.
    run
        The windows in detail.
    """

    policy: str
    knobs: dict[str, Any]
    run: Any

    @property
    def iteration_s(self) -> float:
        """Mean length of a window in seconds."""
        return float(self.run.iteration_s)

    @property
    def iterations_s(self) -> tuple[float, ...]:
        """Lengths of all windows in seconds."""
        return tuple(float(each) for each in self.run.iterations_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfTable:
    """What people read of a what-if: a row for each point, and lines below the table."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


class Kind(ABC):
    """A kind of problem: how it is planned, checked, told and drawn.

    A kind imports its planner and its judge where it uses them, so that naming a kind costs nothing.

    Attributes
    ----------
    name
        Its exchange. Fields of ``Options`` say which exchanges have them.
    noun, problem, refused_as
        The document that it plans, what that is called, and the error for another one.
    shares_network
        Whether its policies are simulated on the one network of a profile, beside those of others.
    answers_what_ifs
        Whether a service answers its what-ifs.
    examples
        Command lines by the command's name, where the command's own example is for another kind.
    unused
        Fields of a profile that plans and simulations of this kind do not use, by their paths.
    details
        What is told of a simulated run beside its time: by the name of the table's column, the field in JSON,
        its value, and the value as text.
    """

    name: ClassVar[Exchange]
    noun: ClassVar[str] = "profile"
    problem: ClassVar[type[Profile | CollectiveGraph]] = Profile
    refused_as: ClassVar[type[PaceError]] = InvalidProfile
    shares_network: ClassVar[bool] = False
    answers_what_ifs: ClassVar[bool] = True
    unused: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[Mapping[str, str]] = {}
    details: ClassVar[Details] = {}

    @abstractmethod
    def fits(self, problem: Any, options: Options) -> bool:
        """Return whether a problem of its document is of this kind if the options name none."""

    def left_out(self, problem: Any) -> list[str]:
        """Return the given fields of a problem that have no influence on this kind, by their paths."""
        return [path for path in self.unused if _at(problem, path) not in (None, 1.0, (), {})]

    def solve(self, problem: Any, options: Options) -> Schedule:
        """Return the best schedule found, with its bound and its proof."""
        refuse_other(problem, self.problem, self.refused_as)
        options.refuse_others(self.name)
        return self._solve(problem, options)

    @abstractmethod
    def _solve(self, problem: Any, options: Options) -> Schedule: ...

    def violations(self, problem: Any, schedule: Schedule) -> list[str]:
        """Return every way in which a schedule of this kind is wrong for its problem."""
        refuse_other(problem, self.problem, self.refused_as)
        return self._violations(problem, schedule)

    @abstractmethod
    def _violations(self, problem: Any, schedule: Schedule) -> list[str]: ...

    @abstractmethod
    def simulate(
        self, problem: Any, policy: str, knobs: Mapping[str, Any], options: SimulationOptions
    ) -> PolicyRun:
        """Simulate a problem under one of this kind's policies, with some of its knobs set."""

    def lower_bound_s(self, problem: Any, options: SimulationOptions) -> float | None:
        """Return the time that no schedule beats, in seconds; None if none is known for the options."""
        from pace.planning.lower_bound import lower_bound_s

        return lower_bound_s(problem)

    def speed(self, problem: Any) -> tuple[float, str] | None:
        """Return what all workers process in a window, and what is counted; None if that is not known."""
        return None

    def simulated_title(self, problem: Any, options: SimulationOptions) -> str:
        """Return the name of what is simulated, and where."""
        return str(problem.name)

    def draw_policies(self, problem: Any, found: Mapping[str, SimulatedPolicy], path: Path) -> None:
        """Draw the windows of policies to a .png, .svg or .pdf."""
        raise InvalidOptions(f'policies of exchange "{self.name}" cannot be drawn: leave the chart out')

    def grid(self) -> "type[PolicyGrid] | None":
        """Return the class of the grids that ``what_if`` takes; None if this kind has no what-ifs."""
        return None

    def what_if(
        self,
        problem: Any,
        grid: Any,
        *,
        processes: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Any:
        """Simulate every point of a grid under every policy; `progress` takes how many more are done."""
        raise InvalidOptions(f'exchange "{self.name}" has no what-ifs')

    def what_if_s(self, problem: Any, grid: Any, processes: int | None) -> float:
        """Return about how many seconds a grid takes; 0 if that is never long."""
        return 0.0

    def what_if_table(self, result: Any) -> WhatIfTable:
        """Return a what-if for people."""
        raise InvalidOptions(f'exchange "{self.name}" has no what-ifs')

    def draw_what_if(self, result: Any, path: Path) -> None:
        """Draw a what-if to a .png, .svg or .pdf."""
        raise InvalidOptions(f'exchange "{self.name}" has no what-ifs')

    def unfit_policies(self, options: SimulationOptions) -> tuple[str, ...]:
        """Return the policies that cannot be simulated with the options."""
        return ()

    def first_knobs(self, problem: Any, options: SimulationOptions) -> Mapping[str, float] | None:
        """Return the sizes in bytes at which a search for knobs starts, by their names; None for any."""
        return None

    def flags(self, command: str) -> tuple[Parameter, ...]:
        """Return the options that a command of this name has for this kind, beside fields of its model.

        A command line with one of them is for this kind.
        """
        return ()

    def read_flags(self, problem: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of the command's model that those options set."""
        return {}

    @abstractmethod
    def title(self, problem: Any, schedule: Schedule) -> str:
        """Return what a problem is, in a few words: its name and how large it is."""

    @abstractmethod
    def rows(self, problem: Any, schedule: Schedule) -> Iterator[Row]:
        """Yield what people read of a schedule, by short names; a name may be empty."""

    @abstractmethod
    def draw(self, problem: Any, schedule: Schedule, path: Path) -> None:
        """Draw what a schedule predicts to a .png, .svg or .pdf."""


def _at(document: Any, path: str) -> Any:
    """Return the value at a path; None if what holds it is left out."""
    for name in path.split("."):
        document = getattr(document, name, None)
    return document
