"""A service whose pack is removed keeps what is stored, and goes on with it when the pack is back."""

import sqlite3
import sys
from pathlib import Path

import pytest

from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile
from tests.test_without_packs import without_packs

__all__ = ["without_packs"]
RUN = {"scenario": {"name": "small", "machines": 3, "duration_s": 3}, "policies": ["ring"]}


@pytest.mark.slow
def test_tasks_of_a_removed_pack_wait_for_it(without_packs: dict[str, str], tmp_path: Path) -> None:
    """They are not listed and not done; a service with the pack does them."""
    with ServiceProcess(tmp_path) as service:
        run = service.http.post("/v1/fabric-runs", json=RUN)
        assert run.status_code == 201, run.text
        (task,) = service.http.get("/v1/tasks").json()["items"]
        url = str(service.settings["database_url"])
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        database.execute("UPDATE tasks SET state = 'queued', finished_at = NULL")
    with ServiceProcess(tmp_path, url, command=[sys.executable], environment=without_packs) as service:
        assert service.post_schedule(layered_profile(4)).status_code == 201
        assert [each["kind"] for each in service.http.get("/v1/tasks").json()["items"]] == ["schedule"]
        assert service.http.get(f"/v1/tasks/{task['id']}").status_code == 404
        assert service.http.get("/v1/fabric-runs").status_code == 404
    with ServiceProcess(tmp_path, url) as service:
        followed = service.http.get(f"/v1/tasks/{task['id']}/events").text
        assert "event: done" in followed
        assert service.http.get(run.headers["location"]).content == run.content
