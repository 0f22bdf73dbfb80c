"""Kinds of problems, and what can be asked of all of them: ``optimize``, ``check`` and ``load_problem``.

A kind is a class beside these, listed in ``pace.kinds.registry``, or in a pack. Faces ask it and name none.
"""

from pathlib import Path

from pace.documents.base import refuse_other
from pace.documents.graph.collective_graph import is_graph, load_graph
from pace.documents.options import Options
from pace.documents.profile import load_profile
from pace.documents.schedule import Schedule
from pace.errors import InvalidSchedule
from pace.kinds.kind import AnyProblem
from pace.kinds.registry import kind_named, kind_of, kinds_with


def optimize(problem: AnyProblem, options: Options | None = None) -> Schedule:
    """Return the schedule that minimizes the predicted iteration time of a profile or a graph.

    The same document and options give the same schedule, byte for byte, except for the recorded seconds of
    linear programs. The schedule contains a lower bound that no schedule with its exchange beats, and the
    proof.

    Parameters
    ----------
    problem
        The measured iteration (a profile), or a graph of ops and collectives.
    options
        ``exchange`` sets how gradients become updates (default: by ``kind_of``).

    Raises
    ------
    InvalidOptions
        If the options do not fit one another or the problem; the message says which would.
    InvalidCluster
        If the parameter servers do not fit the profile.
    SolverFailed
        If the oracle finds no solution.
    """
    options = Options() if options is None else options
    return kind_of(problem, options).solve(problem, options)


def check(problem: AnyProblem, schedule: Schedule) -> list[str]:
    """Return every way in which a schedule is wrong for its problem; an empty list if it is right.

    A schedule may be slower than the best: its proofs and bounds say how much, and the checker computes them
    again without the solver's code.
    """
    refuse_other(schedule, Schedule, InvalidSchedule)
    kind, fitting = kind_named(schedule.exchange), kinds_with(problem)
    if kind not in fitting:
        which = f'the schedule has exchange "{schedule.exchange}"'
        return [f"{which}: check it against its {kind.noun}, not a {fitting[0].noun}"]
    return kind.violations(problem, schedule)


def load_problem(path: str | Path) -> AnyProblem:
    """Read a profile or a graph from a file.

    Raises
    ------
    InvalidProfile, InvalidGraph
        If the file holds none.
    OSError
        If the file cannot be read.
    """
    return load_graph(path) if is_graph(path) else load_profile(path)
