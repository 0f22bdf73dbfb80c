"""Packs: distributions that add commands, questions and pages to PACE. The core works without any.

A pack declares one entry point in the group ``pace.packs``, which names its ``Pack``. The core imports no
pack in any other way.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Any

GROUP = "pace.packs"
# Commands of packs, and the extra that installs each.
EXTRAS = {
    "diloco": "sync",
    "fabric": "fabric",
    "fit-overhead": "servers",
    "predict": "servers",
    "servers": "servers",
    "sync": "sync",
}


# Exchanges of packs, and the extra that installs each.
EXCHANGES = {"servers": "servers"}


@dataclass(frozen=True, kw_only=True)
class Pack:
    """What a pack adds, each part as ``module:name``: it is imported where it is used.

    Attributes
    ----------
    name
        Name of the pack and of the extra that installs it.
    commands
        Typer applications by the name of their command. Those of the name "" add their commands to ``pace``
        itself, and those of the name "import" to ``pace import``.
    kinds
        A sequence of ``pace.kinds.kind.Kind``.
    policies
        A sequence of names and their ``pace.simulation.registry.PolicyEntry``.
    questions
        A sequence of ``pace.api.questions.kind.QuestionKind``.
    kernels
        A function that returns functions, each of which loads compiled loops that a request may need.
    http
        A ``pace.api.http.pack_parts.HttpPart``: routes, their examples, and views of the web page.
    log_events
        ``LogEvent`` by name, for the reference.
    communications
        Classes derived from ``pace.runtime.options.Communication``: an option of theirs that is given to a
        front door is an error that names them.
    """

    name: str
    commands: Mapping[str, str] = field(default_factory=dict)
    kinds: str | None = None
    policies: str | None = None
    questions: str | None = None
    kernels: str | None = None
    http: str | None = None
    log_events: str | None = None
    communications: str | None = None


@cache
def packs() -> tuple[Pack, ...]:
    """Return the packs that are installed, by name."""
    found: list[Pack] = [entry.load() for entry in entry_points(group=GROUP)]
    return tuple(sorted(found, key=lambda pack: pack.name))


def parts(name: str) -> Iterator[Any]:
    """Yield what packs offer as one of their parts, such as ``questions``."""
    for pack in packs():
        if (reference := getattr(pack, name)) is not None:
            yield resolve_name(reference)
