"""Reports errors of commands: one message on stderr, and an exit code for scripts."""

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import ValidationError

from pace.counted import counted
from pace.documents.base import explain
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.profile import Profile
from pace.errors import (
    AccessDenied,
    FormatError,
    InvalidDocument,
    InvalidOptions,
    PaceError,
    ScheduleMismatch,
)

if TYPE_CHECKING:
    from pace.kinds.kind import Kind

WRONG, USAGE, FAILED = 1, 2, 3

# The options of the command that runs, by the names that Python and the service have for them.
_OPTIONS: ContextVar[Mapping[str, str]] = ContextVar("options", default={})  # noqa: B039 - never changed

# The extra that installs a package, by the package that is imported first.
_EXTRAS = {
    "alembic": "api",
    "bayes_opt": "tune",
    "fastapi": "api",
    "google": "chakra",
    "httpx": "client",
    "ijson": "solver",
    "networkx": "solver",
    "numba": "solver",
    "matplotlib": "plot",
    "pulp": "solver",
    "pydantic_settings": "api",
    "scipy": "solver",
    "sqlalchemy": "api",
    "structlog": "api",
    "torch": "torch",
    "uvicorn": "api",
}


@contextmanager
def reported() -> Iterator[None]:
    """Convert PACE's errors to one message on stderr and an exit code.

    1: an input is invalid; 2: wrong usage; 3: a service or the environment failed.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]  # the rest is for files
            yield
    except (InvalidDocument, ScheduleMismatch, FormatError) as error:
        _fail(_as_typed(str(error)), WRONG)
    except InvalidOptions as error:
        _fail(_as_typed(str(error), everywhere=True), USAGE)
    except ValidationError as error:
        _fail(_as_typed(explain(error), everywhere=True), USAGE)
    except AccessDenied as error:
        _fail(_as_typed(str(error), everywhere=True), FAILED)
    except PaceError as error:
        _fail(error, FAILED)
    except OSError as error:
        # Without the number that Python puts in front.
        reason = error.strerror or error
        _fail(reason if error.filename is None else f"{error.filename}: {reason}", FAILED)
    except ModuleNotFoundError as error:
        package = (error.name or "pace").partition(".")[0]
        if package == "pace":
            raise
        what = f'"pace-scheduler[{_EXTRAS[package]}]"' if package in _EXTRAS else package
        _fail(f"{error.name} is not installed, and this command needs it: pip install {what}", FAILED)


@contextmanager
def options_called(options: Mapping[str, str]) -> Iterator[None]:
    """Call options in errors as they are typed: ``--slot-s`` instead of ``slot_s``.

    Parameters
    ----------
    options
        What is typed, by the name that Python and the service have for it.
    """
    token = _OPTIONS.set(options)
    try:
        yield
    finally:
        _OPTIONS.reset(token)


def _as_typed(message: str, *, everywhere: bool = False) -> str:
    """Return a message that calls options as they are typed.

    What a message begins with is an option, if it has the name of one: files are named before their fields.
    An error about options also has names elsewhere. These have an underscore, or their value behind them.
    """
    options = _OPTIONS.get()
    every = "|".join(options)
    long = "|".join(name for name in options if "_" in name)
    places = [rf"\A({every})(?=:| is | of | [\d'\"-]| nan| inf)"]
    if everywhere:
        places += [rf"^({every})(?=: )", rf"(?<!no )(?<!of )(?<![\w\"'-])({every})(?= \")"]
        places += [rf"(?<![\w\"'-])({long})\b"] if long else []
    pattern = re.compile("|".join(places), re.MULTILINE)
    return pattern.sub(lambda name: options[name[name.lastindex or 0]], message) if options else message


def judged(path: Path, check: Callable[[], list[str]], *, as_json: bool) -> None:
    """Print the violations that a checker finds in a file; exit with 1 if there is one.

    Parameters
    ----------
    check
        Reads the file and returns its violations; what it refuses as invalid counts as violations, too.
    """
    try:
        violations = check()
    except InvalidDocument as error:
        violations = str(error).splitlines()
    if as_json:
        typer.echo(json.dumps({"valid": not violations, "violations": violations}))
    else:
        for violation in violations:
            typer.echo(violation)
        typer.echo(
            f"{path}: {counted(len(violations), 'violation') if violations else 'valid'}",
            err=bool(violations),
        )
    if violations:
        raise typer.Exit(WRONG)


def warn_if_misleading(profile: Profile) -> None:
    """Warn if the import found that the profile does not predict all of the step it was made from."""
    from pace.formats.import_report import misleading

    for warning in misleading(profile):
        _show_warning(warning)


def warn_of_unused(problem: Profile | CollectiveGraph, kind: "Kind") -> None:
    """Warn of each field of a problem that plans and simulations of this kind do not use."""
    for field in kind.left_out(problem):
        _show_warning(f'{problem.name}: {field} is not used with exchange "{kind.name}"')


def tell_slowdown(problem: Profile | CollectiveGraph, kind: "Kind | None" = None) -> None:
    """Print on stderr that communication slows compute down, if it does and this is used."""
    if kind is not None and "compute_slowdown" in kind.left_out(problem):
        return
    if problem.compute_slowdown != 1:
        typer.echo(
            f"pace: compute takes {problem.compute_slowdown:.3g} times as long during communication",
            err=True,
        )


def warn_of_the_cost(profile: Profile) -> None:
    """Print warnings about the profile's measured all-reduce costs."""
    from pace.cost_warnings import profile_warnings

    for warning in profile_warnings(profile):
        _show_warning(warning)


def _show_warning(message: Warning | str, *_place: Any) -> None:
    typer.echo(f"pace: warning: {_as_typed(str(message), everywhere=True)}", err=True)


def _fail(message: object, code: int) -> None:
    typer.echo(f"pace: {message}", err=True)
    raise typer.Exit(code)
