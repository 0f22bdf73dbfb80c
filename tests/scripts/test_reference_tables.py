"""Tables of the reference are generated from the code, which describes all that they list."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any

import pytest

from pace.api.events import EVENTS
from pace.api.questions.all_kinds import KINDS
from pace.log_events import LogEvent
from pace.packs import packs
from pace.runtime.event_log import TRAINING_EVENTS
from tests.documentation.pages import documentation_pages
from tests.scripts.hooks import ROOT, load_hook

HOOK: Any = load_hook("reference_tables")
MOST_WORDS = 30  # as in scripts/prose
LEVELS = {"_say": "info", "exception": "error"} | {
    name: name for name in ("debug", "info", "warning", "error")
}
# Names that a helper passes on: the hourly work, and the answer of each kind of question.
PASSED_ON = {"swept", "sweep-failed", "pruned", "prune-failed", *(kind.done_event for kind in KINDS.values())}


def cells(table: str) -> list[list[str]]:
    """Return the rows of a generated table, without its head."""
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return [re.split(r" (?<!\\\\)\| ", row.removeprefix("| ").removesuffix(" |")) for row in rows]


@pytest.mark.pack("servers")
@pytest.mark.parametrize("name", HOOK.TABLES)
def test_everything_is_described_in_plain_words(name: str) -> None:
    """The last column is a phrase: two words at least, a capital, no full stop, no sentence too long."""
    rows = cells(HOOK.TABLES[name]())
    assert rows
    for row in rows:
        meaning = row[-1]
        plain = re.sub(r"`[^`]*`", "Code", meaning)
        assert len(plain.split()) >= 2, row
        assert plain[0].isupper(), row
        assert not meaning.endswith("."), row
        assert all(len(part.split()) <= MOST_WORDS for part in plain.split(". ")), row


@pytest.mark.parametrize("name", ["settings of storage", "settings of limits", "settings of work"])
def test_settings_with_a_unit_name_it(name: str) -> None:
    """Seconds and bytes are in the description, as they are in the name."""
    for variable, _default, meaning in cells(HOOK.TABLES[name]()):
        if variable.endswith("_S`"):
            assert "econds" in meaning or "timeout" in meaning, variable
        if variable.endswith("_BYTES`"):
            assert "bytes" in meaning.lower(), variable


@pytest.mark.parametrize("registry", [HOOK.runtime_registry, HOOK.service_registry])
def test_metrics_with_a_unit_name_it(registry: Any) -> None:
    """Seconds and bytes are in the help text, as they are in the name."""
    for family in registry().collect():
        for unit in ("seconds", "bytes"):
            if f"_{unit}" in family.name:
                help_text = family.documentation.lower()
                assert unit in help_text or "memory" in help_text, family.name


@pytest.mark.pack("fabric")
@pytest.mark.pack("servers")
@pytest.mark.pack("sync")
def test_every_table_has_one_place() -> None:
    """A table that no page has, or that has two, is a mistake; an unknown one fails the build."""
    pages = [path.read_text(encoding="utf-8") for path in documentation_pages()]
    places = Counter(name for page in pages for name in re.findall(r"^<!-- table: (.+) -->$", page, re.M))
    assert places == Counter(HOOK.TABLES.keys())


def logged(folder: str) -> Iterator[tuple[str, str, set[str] | None]]:
    """Yield event, level and fields of the calls that log; None where fields are not in the call."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr=method) | ast.Name(id=method),
                    args=[ast.Constant(value=str(event))],
                    keywords=keywords,
                ) if method in LEVELS or method == "said":
                    names = {each.arg for each in keywords if each.arg != "exc_info"}
                    given = {name for name in names if name is not None}
                    yield event, LEVELS.get(method, ""), None if None in names else given


@pytest.mark.parametrize(
    ("folder", "declared"),
    [
        ("runtime", TRAINING_EVENTS),
        ("api", EVENTS),
        *(
            (f"packs/{pack.name}/pace_{pack.name}", resolve_name(pack.log_events))
            for pack in packs()
            if pack.log_events
        ),
    ],
)
def test_loggers_log_what_is_declared(folder: str, declared: Mapping[str, LogEvent]) -> None:
    """Each event is declared with its level and all of its fields, and each declared event is logged."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    levels: defaultdict[str, set[str]] = defaultdict(set)
    open_ended = set(PASSED_ON)
    for event, level, fields in logged(folder):
        if event == "denied":  # of the audit log
            continue
        found[event] |= fields or set()
        levels[event] |= {level} - {""}
        if fields is None:
            open_ended.add(event)
    here = {event for event in declared if event in PASSED_ON}
    assert found.keys() | here == declared.keys()
    for event, (level, names, _meaning) in declared.items():
        told = set(names.split())
        assert found[event] <= told if event in open_ended else found[event] == told, event
        assert levels[event] <= {level}, event
