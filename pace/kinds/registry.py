"""The kinds of problems by name: those of the core, and those of packs."""

from collections.abc import Mapping
from functools import cache
from itertools import chain

from pace.documents.base import refuse_other
from pace.documents.options import Options
from pace.errors import InvalidOptions, InvalidProfile
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
    fitting = kinds_with(problem)
    if options.exchange is None:
        found = (kind for kind in fitting if kind.fits(problem, options))
        return next(found, None) or kind_named(next(iter(EXCHANGES)))
    named = kind_named(options.exchange)
    if named not in fitting:
        names = " or ".join(f'"{kind.name}"' for kind in fitting)
        raise InvalidOptions(
            f'exchange "{named.name}" is not possible for a {fitting[0].noun}: use {names}, or leave it out'
        )
    return named


def kinds_with(problem: AnyProblem) -> list[Kind]:
    """Return the kinds whose problems are such documents; raises InvalidProfile if there is none."""
    fitting = [kind for kind in kinds().values() if isinstance(problem, kind.problem)]
    if not fitting:
        raise InvalidProfile(
            f"a Profile or a CollectiveGraph is needed, not {type(problem).__name__}: read a file by "
            "load_profile or load_graph"
        )
    return fitting
