"""Changes every field of a schedule, one at a time: for tests of what its checker must refuse."""

import json
from collections.abc import Iterable, Iterator
from math import isclose
from typing import Any

from pace.documents.base import Document
from pace.documents.schedule import Schedule, parse_schedule
from pace.errors import InvalidSchedule
from pace.kinds import check
from pace.kinds.kind import AnyProblem
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


def donors_of(schedules: Iterable[Schedule]) -> Donors:
    """Return the values that fields have in any of some schedules."""
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

    for schedule in schedules:
        collect(schedule)
    return found


def accepted_changes(problem: AnyProblem, schedule: Schedule, donors: Donors) -> set[str]:
    """Return the fields of which the checker accepts a change, with "less" where only smaller numbers pass.

    Numbers become a little and much smaller and larger. Texts and missing values become others, also those
    that the field has in other schedules. Of a list, the first and the last entry are changed.
    """
    document = json.loads(schedule.to_json())
    assert check(problem, schedule) == []
    found: dict[str, set[str]] = {}
    for path, value, others in _fields(schedule, (), donors):
        for other in others:
            try:
                faults = check(problem, parse_schedule(json.dumps(changed(document, path, other))))
            except InvalidSchedule:
                continue
            if not faults:
                name = ".".join("#" if isinstance(part, int) else part for part in path)
                is_less = isinstance(value, int | float) and isinstance(other, int | float) and other < value
                found.setdefault(name, set()).add(" less" if is_less else "")
    return {name + (" less" if ways == {" less"} else "") for name, ways in found.items()}


def _fields(value: Any, path: Path, donors: Donors) -> Iterator[tuple[Path, Any, list[Any]]]:
    """Yield each field that holds no others: where it is, its value, and other values."""
    if isinstance(value, Document):
        for name in type(value).model_fields:
            inner = getattr(value, name)
            given = donors.get((type(value), name), [])
            if inner is None or inner == ():
                yield (*path, name), inner, [other for other in [*given, 1, 1.5, *TEXTS] if other != inner]
            elif isinstance(inner, Document | tuple):
                yield from _fields(inner, (*path, name), donors)
            else:
                others = [other for other in (*_others(inner), *given) if not _same(other, inner)]
                yield (*path, name), inner, others
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
