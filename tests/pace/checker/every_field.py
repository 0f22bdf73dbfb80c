"""Changes every field of a schedule or a plan, one at a time: for tests of what its checker must refuse."""

import json
from collections.abc import Callable, Iterable, Iterator
from math import isclose
from typing import Any

from pace.documents.base import Document
from pace.errors import PaceError
from tests.strategies import changed

Path = tuple[str | int, ...]
Donors = dict[tuple[type, str], list[Any]]

RECORDS = {
    "framework",
    "solver.version",
    "solver.method",
    "solver.oracle",
    "solver.fusion",
    "solver.lp_solver",
    "solver.num_programs",
    "solver.programs_s",
    "solver.curve.#.#",
    "graph.budget_bytes",
    "graph.enumerated.num_states",
}
"""What says how a plan was made, or was asked for, and does not follow from it."""

TEXTS = (
    "x",
    "allreduce",
    "optimal",
    "paper",
    "none",
    "ddp",
    "horovod",
    "tail",
    "float16",
    "all-gather",
    "lp",
)


def donors_of(plans: Iterable[Document]) -> Donors:
    """Return the values that fields have in any of some schedules or plans."""
    found: Donors = {}

    def collect(value: Any) -> None:
        if isinstance(value, Document):
            for name in type(value).model_fields:
                inner = getattr(value, name)
                if inner not in (None, ()):
                    found.setdefault((type(value), name), []).append(_plain(inner))
                collect(inner)
        elif isinstance(value, tuple):
            for inner in value[:1]:
                collect(inner)

    for plan in plans:
        collect(plan)
    return found


def accepted_changes(plan: Document, faults_of: Callable[[str], list[str]], donors: Donors) -> set[str]:
    """Return the fields of which the checker accepts a change, with "less" where only smaller numbers pass.

    Numbers become a little and much smaller and larger. Texts and missing values become others, also those
    that the field has in other schedules. Of a list, the first and the last entry are changed.

    Parameters
    ----------
    faults_of
        Reads a plan from JSON and returns what its checker finds.
    """
    document = json.loads(plan.model_dump_json(by_alias=True))
    assert faults_of(json.dumps(document)) == []
    found: dict[str, set[str]] = {}
    for path, value, others in _fields(plan, (), donors):
        for other in others:
            try:
                faults = faults_of(json.dumps(changed(document, path, other)))
            except PaceError:
                continue
            if not faults:
                name = ".".join("#" if isinstance(part, int) else part for part in path)
                is_less = isinstance(value, int | float) and isinstance(other, int | float) and other < value
                found.setdefault(name, set()).add(" less" if is_less else "")
    return {name + (" less" if ways == {" less"} else "") for name, ways in found.items()}


def _fields(value: Any, path: Path, donors: Donors) -> Iterator[tuple[Path, Any, list[Any]]]:
    """Yield each field that holds no others: where it is, its value, and other values."""
    if isinstance(value, Document):
        for name, field in type(value).model_fields.items():
            inner, place = getattr(value, name), (*path, field.alias or name)
            given = donors.get((type(value), name), [])
            if inner is None or inner == ():
                yield place, inner, [other for other in [*given, 1, 1.5, *TEXTS] if other != inner]
            elif isinstance(inner, Document | tuple):
                yield from _fields(inner, place, donors)
            else:
                others = [other for other in (*_others(inner), *given) if not _same(other, inner)]
                yield place, inner, others
    elif isinstance(value, tuple):
        for at in sorted({0, len(value) - 1}):
            if isinstance(value[at], Document | tuple):
                yield from _fields(value[at], (*path, at), donors)
            else:
                yield (*path, at), value[at], _others(value[at])


def _same(one: Any, other: Any) -> bool:
    return bool(one == other or (isinstance(other, float) and isclose(one, other)))


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [each for each in (value - 1, value + 1, value // 2, 2 * value + 7) if each != value]
    if isinstance(value, float):
        return [each for each in (0.999 * value, 1.001 * value + 1e-3, value / 2, 2 * value) if each != value]
    return list(TEXTS)


def _plain(value: Any) -> Any:
    if isinstance(value, Document):
        return json.loads(value.model_dump_json())
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
