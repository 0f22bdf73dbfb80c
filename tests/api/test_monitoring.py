"""Alert rules and the dashboard: valid, and about metrics that the service has."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.api.postgresql import ON_SQLITE
from tests.api.process import Caller

DEPLOY = Path(__file__).parents[2] / "deploy"
# Only with PACE_METRICS_TENANTS.
_OPTIONAL = re.compile("pace_tenant_(requests_total|work_seconds_total|tasks)")


def _expressions() -> dict[str, str]:
    """Return what alerts and panels ask, by their names."""
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
    found = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    for panel in _dashboard()["panels"]:
        for target in panel["targets"]:
            found[f"{panel['title']} {target['refId']}"] = target["expr"]
    return found


def _dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DEPLOY / "grafana" / "pace.json").read_text())
    return document


def _promtool(*arguments: str | Path) -> None:
    beside = Path(sys.executable).parent  # where scripts/lib/install-promtool puts it
    promtool = shutil.which("promtool", path=f"{beside}{os.pathsep}{os.environ.get('PATH', '')}")
    if promtool is None:
        pytest.skip("promtool is not installed (scripts/lib/install-promtool)")
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_should() -> None:
    """By Prometheus' own tests of rules."""
    _promtool("check", "rules", DEPLOY / "prometheus" / "alerts.yaml")
    _promtool("test", "rules", DEPLOY / "prometheus" / "alerts.test.yaml")


def test_the_dashboards_questions_are_understood(tmp_path: Path) -> None:
    """By Prometheus' own parser, with Grafana's variables filled in."""
    rules = [
        {"record": "panel", "expr": text.replace("$__rate_interval", "5m").replace("$namespace", ".*")}
        for text in _expressions().values()
    ]
    path = tmp_path / "rules.yaml"
    # Each in a group of its own: they may be alike.
    groups = [{"name": str(number), "rules": [rule]} for number, rule in enumerate(rules)]
    path.write_text(yaml.safe_dump({"groups": groups}))
    _promtool("check", "rules", path)


@ON_SQLITE
def test_all_metrics_exist(service: Caller) -> None:
    """What alerts and panels ask for is what the service tells."""
    told = set()
    for family in text_string_to_metric_families(service.http.get("/metrics").text):
        endings = {
            "histogram": ("_bucket", "_count", "_sum"),
            "counter": ("_total",),
        }.get(family.type, ("",))
        told |= {family.name + ending for ending in endings}
    asked = {
        name
        for text in _expressions().values()
        for name in re.findall(r"\b(?:pace|process)_[a-z_]+", text)
        if not _OPTIONAL.fullmatch(name)
    }
    assert len(asked) > 15
    assert asked <= told


def test_the_dashboard_is_well_formed() -> None:
    """Panels have names and places of their own, and their data from the chosen source."""
    document = _dashboard()
    panels = document["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert [variable["name"] for variable in document["templating"]["list"]] == ["datasource", "namespace"]


def test_every_alert_is_in_the_runbook() -> None:
    """Whoever is woken finds what to do."""
    text = (DEPLOY.parent / "docs" / "guides" / "operate.md").read_text()
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert f"`{rule['alert']}`" in text
