"""The tables of the reference name everything that there is, and nothing else."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from pace.api.fairness.tenants import TenantEntry
from pace.api.http.app import create_app
from pace.api.metrics import Metrics
from pace.api.questions.registry import KINDS
from pace.api.settings import Settings
from pace.runtime.entry_point import TrainingOptions
from pace.runtime.metrics import RuntimeCollector
from pace.runtime.options import AllReduce, Mixed, Plan, Replanning, Tune
from pace.runtime.torch import DistributedOptimizer
from tests.documentation.preloaded import ROOT

REFERENCE = ROOT / "docs" / "reference"
LEVELS = {"info", "warning", "error", "exception"}


def first_cells(page: str) -> set[str]:
    """Return what stands in code in the first column of a page's tables."""
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def part(page: str, heading: str) -> str:
    """Return what a page says under a heading."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return re.split(r"^## ", text.split(f"## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def events(*folders: str) -> Iterator[str]:
    """Yield the events that modules log, as far as they stand in the call."""
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr=level), args=[ast.Constant(value=str(event)), *_]) if (
                    level in LEVELS or (level == "_say" and event.startswith("pace."))
                ):
                    yield event


def test_every_event_of_the_runtime_is_listed() -> None:
    """Who finds an event in a log finds its meaning."""
    listed = first_cells(part("log-events.md", "Of a training job")) | first_cells(
        part("log-events.md", "Of a fabric")
    )
    assert set(events("runtime")) == listed


def test_every_event_of_the_service_is_listed() -> None:
    """Those too whose names are made up from others; of the audit log, the page says more in words."""
    made = {kind.done_event for kind in KINDS.values()}
    made |= {"swept", "sweep-failed", "pruned", "prune-failed"}
    assert (set(events("api")) | made) - {"denied"} == first_cells(part("log-events.md", "Of the service"))


def test_every_setting_is_listed() -> None:
    """With its default."""
    page = (REFERENCE / "settings.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `PACE_(\w+)` \| `?([^|`]*)`? \|", page, re.MULTILINE))
    assert {name.lower() for name in rows} == set(Settings.model_fields)
    defaults = {
        name: str(each.default) for name, each in Settings.model_fields.items() if not each.default_factory
    }
    assert {name: rows[name.upper()] for name in defaults} == {
        name: default or "empty" for name, default in defaults.items()
    }


def test_every_entry_of_a_tenant_is_listed() -> None:
    """The file of tenants changes these."""
    listed = first_cells(part("settings.md", "Limits"))
    assert {name for name in listed if name.islower() and not name.startswith("ulimit")} == set(
        TenantEntry.model_fields
    )


def test_every_problem_is_listed() -> None:
    """With its status."""
    listed = {}
    for line in part("http-api.md", "Errors").splitlines():
        names, _, rest = line.removeprefix("| ").partition(" | ")
        for name in re.findall(r"`([a-z-]+)`", names) if line.startswith("| `") else []:
            listed[name] = rest.partition(" | ")[0]
    source = (ROOT / "api" / "problems.py").read_text(encoding="utf-8")
    raised = dict(re.findall(r'name="([a-z-]+)", status=(\d+|error)', source))
    assert {name: status for name, status in listed.items() if name not in ("type", "http")} == {
        name: status for name, status in raised.items() if name != "http"
    }


def test_every_route_is_listed() -> None:
    """With its methods."""
    page = part("http-api.md", "Routes")
    listed = set(re.findall(r"/(?:v1/|healthz|readyz|metrics)[\w/{}-]*", page))
    paths = create_app(Settings()).openapi()["paths"]
    unnamed = {re.sub(r"{\w+}", "{id}", path) for path in paths} - listed
    assert unnamed == {"/v1/schedules/{id}/timeline", "/v1/schedules/{id}/chart"}  # named by their ends


def plain(metric: str) -> str:
    """Return a metric's name without labels, and without what Prometheus adds to counters."""
    return metric.partition("{")[0].removesuffix("_total")


def test_every_metric_of_the_service_is_listed() -> None:
    """Process metrics are prometheus-client's: the page names some."""
    listed = {plain(name) for name in first_cells(part("metrics.md", "Of the service"))}
    here = {family.name for family in Metrics(num_tenants=1).registry.collect()}
    here |= set(re.findall(r'"(pace_[a-z_]+)"', (ROOT / "api" / "service.py").read_text(encoding="utf-8")))
    counts = (ROOT / "api" / "tasks" / "queue_counts.py").read_text(encoding="utf-8")
    here |= set(re.findall(r'"(pace_[a-z_]+)"', counts))
    assert {name for name in here if name.startswith("pace_")} == {
        name for name in listed if name.startswith("pace_")
    }


def test_every_metric_of_a_job_is_listed() -> None:
    """The collector's families, of which the information has a suffix of its own."""
    listed = {
        plain(name).removesuffix("_info") for name in first_cells(part("metrics.md", "Of a training job"))
    }
    registry = CollectorRegistry()
    registry.register(RuntimeCollector())
    assert {family.name for family in registry.collect()} == listed


@pytest.mark.parametrize(
    ("options", "heading"), [(Plan, "Plan"), (Replanning, "Plan"), (Tune, "Tune"), (AllReduce, "AllReduce")]
)
def test_every_option_is_listed(options: type, heading: str) -> None:
    """A field that is added gets a row."""
    names = {each.name for each in fields(options)}
    assert names <= first_cells(part("training-options.md", heading))


def test_every_option_of_servers_is_listed() -> None:
    """Those of ``Mixed`` are in the text below the table."""
    page = part("training-options.md", "ParameterServers and Mixed")
    assert {each.name for each in fields(Mixed)} == first_cells(page) | {"pushed"}


def test_every_argument_is_listed() -> None:
    """Of the front door, and those that all front doors share."""
    own = {
        name
        for name, each in signature(DistributedOptimizer).parameters.items()
        if each.kind == each.KEYWORD_ONLY
    }
    listed = {name.partition("=")[0] for name in first_cells(part("training-options.md", "Arguments"))}
    assert own | set(TrainingOptions.__annotations__) == listed


def test_every_variable_is_listed() -> None:
    """What the runtime reads from the environment."""
    read: set[str] = set()
    for path in (ROOT / "runtime").rglob("*.py"):
        read |= set(re.findall(r'"(PACE_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    for path in (ROOT / "pace" / "cli" / "servers", ROOT / "pace" / "fabric" / "commands"):
        for module in path.rglob("*.py"):
            read |= set(re.findall(r'"(PACE_[A-Z_]+)"', module.read_text(encoding="utf-8")))
    assert read == first_cells(part("training-options.md", "Environment variables"))


def test_links_between_pages_lead_somewhere() -> None:
    """Also where a page is read in the repository."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "results" not in path.parts]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+\.md)[^)]*\)", page.read_text(encoding="utf-8"))
        if not target.startswith("http")
        and not (page.parent / target).exists()
        and Path(target).name != "cli.md"  # generated
    ]
    assert dead == []
