"""Tables of the reference that are generated from the code. ``scripts/schemas`` writes them into the pages.

A page has a comment before a table, such as ``<!-- table: metrics of the service -->``, and one behind it.
"""

import inspect
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import fields
from functools import partial
from pkgutil import resolve_name
from typing import Any

import griffe
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from pydantic import BaseModel

import pace
from pace.api.events import EVENTS
from pace.api.fairness.tenants import TenantEntry
from pace.api.http.app import create_app
from pace.api.metrics import Metrics
from pace.api.problems import kinds_of_problems
from pace.api.service import Service
from pace.api.settings import AccessSettings, LimitSettings, Settings, StorageSettings, WorkSettings
from pace.api.tracing import Spans
from pace.documents.schedule import Exchange
from pace.log_events import LogEvent
from pace.packs import packs
from pace.runtime.event_log import TRAINING_EVENTS
from pace.runtime.metrics import RuntimeCollector
from pace.runtime.options import AllReduce, Plan, Replanning, Tune
from pace.runtime.torch import DistributedOptimizer
from pace.simulation.registry import entries as policy_entries

Row = tuple[str, ...]

_END = "<!-- end of table -->"
_MARK = re.compile(rf"^<!-- table: (.+) -->$(?:\n(?:(?!<!-- table)[^\n]*\n)*?{_END}$)?", re.MULTILINE)
# Defaults that follow from the machine.
_COMPUTED = {"solver_processes": "cores - 1, at least 2"}
_SUFFIXES = {"counter": "_total", "info": "_info"}


def with_tables(markdown: str) -> str:
    """Return a page with its tables as they are now; raises KeyError for a comment that names no table."""
    return _MARK.sub(lambda at: f"<!-- table: {at[1]} -->\n\n{TABLES[at[1]]()}\n\n{_END}", markdown)


def table(heads: Row, rows: Iterable[Row]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ("--",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)


def settings(group: type[BaseModel]) -> str:
    """Return the variables of a group of settings."""
    rows = []
    for name, field in group.model_fields.items():
        default = _COMPUTED.get(name) or (f"`{field.default}`" if field.default != "" else "empty")
        rows.append((f"`PACE_{name.upper()}`", default, field.description or ""))
    return table(("variable", "default", "meaning"), rows)


def arguments() -> str:
    """Return the arguments of a front door besides the optimizer and the model."""
    rows = []
    for parameter in _section(DistributedOptimizer, griffe.DocstringSectionKind.parameters):
        if parameter.name not in ("optimizer", "model"):
            rows.append((f"`{parameter.name}`", _one_line(parameter.description)))
    return table(("argument", "meaning"), rows)


def _section(kind: Any, section_kind: griffe.DocstringSectionKind) -> Any:
    """Return the entries of a section of a docstring."""
    docstring = griffe.Docstring(inspect.cleandoc(kind.__doc__))
    sections = docstring.parse("numpy", warn_unknown_params=False, warn_missing_types=False)
    (found,) = (section.value for section in sections if section.kind is section_kind)
    return found


def options(kind: Any, names: Container[str] | None = None) -> str:
    """Return the options of a dataclass, with what its docstring says of them."""
    defaults = {each.name: each.default for each in fields(kind) if names is None or each.name in names}
    rows = []
    for attribute in _section(kind, griffe.DocstringSectionKind.attributes):
        described = attribute.name.split(", ")
        values = [defaults.pop(name) for name in described]
        shown = "" if values[0] is None else f"`{values[0]!r}`".replace("'", '"')
        rows.append((", ".join(f"`{name}`" for name in described), shown, _one_line(attribute.description)))
    if defaults:
        raise ValueError(f"{kind.__name__}: its docstring does not describe {', '.join(defaults)}")
    return table((f"field of `{kind.__name__}`", "default", "meaning"), rows)


def entries() -> str:
    """Return what an entry of the file of tenants may have."""
    rows = [(f"`{name}`", field.description or "") for name, field in TenantEntry.model_fields.items()]
    return table(("entry of a tenant", "meaning"), rows)


def service_registry() -> CollectorRegistry:
    """Return the metrics of a service that does not run, with those by tenant."""
    metrics = Metrics(num_tenants=1)
    Service(Settings(), metrics, Spans())
    return metrics.registry


def runtime_registry() -> CollectorRegistry:
    """Return the metrics of training jobs."""
    registry = CollectorRegistry()
    registry.register(RuntimeCollector())
    return registry


def metrics(registry: Collector | CollectorRegistry) -> str:
    """Return the metrics of a registry."""
    rows = [
        (f"`{family.name}{_SUFFIXES.get(family.type, '')}`", family.type, family.documentation.rstrip("."))
        for family in sorted(registry.collect(), key=lambda family: family.name.startswith("process_"))
    ]
    return table(("metric", "type", "meaning"), rows)


def events(declared: Mapping[str, LogEvent]) -> str:
    """Return declared events of a log."""
    rows = []
    for name, event in declared.items():
        fields = ", ".join(f"`{field}`" if field != "*" else "others" for field in event.fields.split())
        level = event.level if event.level in ("info", "debug") else f"**{event.level}**"
        rows.append((f"`{name}`", level, fields, event.meaning))
    return table(("event", "level", "fields", "meaning"), rows)


def routes() -> str:
    """Return the operations of the OpenAPI document, by tag."""
    document = create_app(Settings()).openapi()
    parts = []
    for tag in document["tags"]:
        rows = [
            (
                f"`{method.upper()} {path}`",
                ", ".join(f"`{name}`" for name in _inputs(operation, document)),
                _first_paragraph(operation["description"]),
            )
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if tag["name"] in operation["tags"]
        ]
        heads = ("request", "parameters or fields", "meaning")
        parts.append(f"### {tag['name']}\n\n{tag['description']}\n\n{table(heads, rows)}")
    return "\n\n".join(parts)


def _inputs(operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterable[str]:
    """Yield the names of parameters that are not in the path, and of fields of a body in JSON."""
    for parameter in operation.get("parameters", []):
        if parameter["in"] != "path":
            yield parameter["name"]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if reference := body.get("schema", {}).get("$ref"):
        yield from document["components"]["schemas"][reference.rpartition("/")[2]]["properties"]


def _first_paragraph(text: str) -> str:
    return _one_line(text.partition("\n\n")[0])


def _one_line(text: str) -> str:
    return " ".join(text.split()).removesuffix(".")


def problems() -> str:
    """Return the kinds of problems by status."""
    rows = [
        (f"`{name}`", "its own" if status is None else str(status), meaning)
        for name, status, meaning in kinds_of_problems()
    ]
    return table(("end of `type`", "status", "meaning"), rows)


def policies(*exchanges: Exchange) -> str:
    """Return the policies of exchanges with their knobs and rules."""
    rows = []
    for name, entry in policy_entries():
        if entry.exchange in exchanges:
            knobs = ", ".join(f"`{knob}` ({_shown(value)})" for knob, value in entry.defaults.items())
            rows.append((f"`{name}`", knobs or "none", entry.rule))
    return table(("policy", "knobs (defaults)", "rule"), rows)


def _shown(value: object) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case None:
            return "none"
        case int():
            return f"{value:,}"
    return str(value)


def package() -> str:
    """Return what `import pace` offers, each name with a link to its reference."""
    rows = []
    for name in sorted(pace.__all__, key=str.lower):
        offered = getattr(pace, name)
        if inspect.isclass(offered) or inspect.isfunction(offered):
            home = f"{offered.__module__}.{offered.__qualname__}"
            summary = _first_paragraph(inspect.cleandoc(offered.__doc__ or ""))
            rows.append((f"`{name}`", f"[{offered.__module__}][{home}]", summary))
    return table(("name", "reference", "what it is"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "settings of storage": lambda: settings(StorageSettings),
    "settings of access": lambda: settings(AccessSettings),
    "settings of work": lambda: settings(WorkSettings),
    "settings of limits": lambda: settings(LimitSettings),
    "entries of tenants": entries,
    "metrics of a training job": lambda: metrics(runtime_registry()),
    "metrics of the service": lambda: metrics(service_registry()),
    "events of a training job": lambda: events(TRAINING_EVENTS),
    "events of the service": lambda: events(EVENTS),
    "routes": routes,
    "problems": problems,
    "names of the package": package,
    "policies on one network": lambda: policies("allreduce", "sharded"),
    "policies on servers": lambda: policies("servers"),
    "policies on graphs": lambda: policies("graph"),
    "arguments of a front door": arguments,
    "options of Plan": lambda: options(Plan),
    "options of Replanning": lambda: options(Replanning),
    "options of Tune": lambda: options(Tune),
    "options of AllReduce": lambda: options(AllReduce),
    "options of ParameterServers": lambda: options(resolve_name("pace_servers.runtime:ParameterServers")),
    "options of Mixed": lambda: options(resolve_name("pace_servers.runtime:Mixed"), {"pushed"}),
} | {
    f"events of the pack {pack.name}": partial(events, resolve_name(pack.log_events))
    for pack in packs()
    if pack.log_events is not None
}
