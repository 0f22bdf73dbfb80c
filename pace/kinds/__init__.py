"""Kinds of problems, and what can be asked of all of them: ``optimize``, ``check`` and ``load_problem``.

A kind is a class beside these or in a pack, listed by ``kinds``: faces ask it and name none.
"""

from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path

from pace.documents.base import refuse_other
from pace.documents.graph.collective_graph import is_graph, load_graph
from pace.documents.options import Options
from pace.documents.profile import load_profile
from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions, InvalidProfile, InvalidSchedule
from pace.kinds.allreduce import AllReduces
from pace.kinds.graph import Graphs
from pace.kinds.kind import AnyProblem, Kind
from pace.kinds.sharded import Shards
from pace.packs import EXCHANGES, parts


@cache
def kinds() -> Mapping[str, Kind]:
    """Return all kinds by name: the first that fits a problem is its kind, unless options name another."""
    core = (Graphs(), Shards(), AllReduces())
    return {kind.name: kind for kind in chain(chain.from_iterable(parts("kinds")), core)}


def kind_named(name: str) -> Kind:
    """Return the kind of this name; raises InvalidOptions if it is in a pack that is not installed."""
    if name not in kinds():
        raise InvalidOptions(
            f'exchange "{name}" is in a pack that is not installed: '
            f'run: pip install "pace-scheduler[{EXCHANGES[name]}]"'
        )
    return kinds()[name]


def kind_of(problem: AnyProblem, options: Options | None = None) -> Kind:
    """Return the kind that the options name, or else the first that fits a problem.

    Raises
    ------
    InvalidProfile
        If the problem is neither a profile nor a graph.
    InvalidOptions
        If the options name a kind of other problems.
    """
    options = Options() if options is None else options
    refuse_other(options, Options, InvalidOptions)
    fitting = _kinds_with(problem)
    if options.exchange is None:
        found = (kind for kind in fitting if kind.fits(problem, options))
        return next(found, None) or kind_named(next(iter(EXCHANGES)))
    named = kind_named(options.exchange)
    if named not in fitting:
        names = " or ".join(f'"{kind.name}"' for kind in fitting)
        raise InvalidOptions(
            f'exchange "{named.name}" is not possible for a {fitting[0].noun}: use {names}, '
            "or leave exchange out"
        )
    return named


def _kinds_with(problem: AnyProblem) -> list[Kind]:
    """Return the kinds whose problems are such documents; raises InvalidProfile if there is none."""
    fitting = [kind for kind in kinds().values() if isinstance(problem, kind.problem)]
    if not fitting:
        raise InvalidProfile(
            f"a Profile or a CollectiveGraph is needed, not {type(problem).__name__}: read a file by "
            "load_profile or load_graph"
        )
    return fitting


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
    kind, fitting = kind_named(schedule.exchange), _kinds_with(problem)
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
