"""What a kind of problem is: how it is planned, checked, told and drawn."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pace.documents.base import refuse_other
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Exchange, Schedule
from pace.errors import InvalidProfile, PaceError

AnyProblem = Profile | CollectiveGraph
Row = tuple[str, str]


class Kind(ABC):
    """A kind of problem: how it is planned, checked, told and drawn.

    A kind imports its planner and its judge where it uses them, so that naming a kind costs nothing.

    Attributes
    ----------
    name
        Its exchange. Fields of ``Options`` say which exchanges have them.
    noun, problem, refused_as
        The document that it plans, what that is called, and the error for another one.
    """

    name: ClassVar[Exchange]
    noun: ClassVar[str] = "profile"
    problem: ClassVar[type[Profile | CollectiveGraph]] = Profile
    refused_as: ClassVar[type[PaceError]] = InvalidProfile

    @abstractmethod
    def fits(self, problem: Any, options: Options) -> bool:
        """Return whether a problem of its document is of this kind if the options name none."""

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
    def title(self, problem: Any, schedule: Schedule) -> str:
        """Return what a problem is, in a few words: its name and how large it is."""

    @abstractmethod
    def rows(self, problem: Any, schedule: Schedule) -> Iterator[Row]:
        """Yield what people read of a schedule, by short names; a name may be empty."""

    @abstractmethod
    def draw(self, problem: Any, schedule: Schedule, path: Path) -> None:
        """Draw what a schedule predicts to a .png, .svg or .pdf."""
