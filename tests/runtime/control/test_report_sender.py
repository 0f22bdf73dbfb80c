"""What jobs report: iteration times measured under a schedule, next to the predicted ones."""

import time
from pathlib import Path
from typing import Any

import pytest

from pace.client import Client
from pace.runtime.control import plan_source, replanner
from pace.runtime.control.plan_source import ReportSender
from pace.runtime.options import Replanning
from tests.api.process import ServiceProcess
from tests.runtime.launch import run_ranks
from tests.runtime.logs import captured_events
from tests.runtime.models import batches, build
from tests.runtime.schedules import profile_of, shuffled_schedule, sizes_of
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap

JOB = "reported"
STEPS = 24
WINDOW = 5
SLOW_S = 0.2


def _train(
    rank: int,
    _size: int,
    url: str,
    num_reports: int,
    drift_ratio: float = 1e9,
    report_every_s: float = 600.0,
    slow_from: int = STEPS,
) -> Any:
    replanner.STEPS_BETWEEN = 8
    replanner.REPORT_EVERY_S = report_every_s
    plan_source._START_TIMEOUT_S = 60.0
    model = build("conv")
    settings = Replanning(
        profile_iterations=0, drift_iterations=WINDOW, drift_ratio=drift_ratio, stale_ratio=1e9
    )
    optimizer = wrap(
        "gloo",
        OPTIMIZERS["sgd"](trainable(model)),
        model,
        service=url,
        job=JOB,
        mode="overlap",
        replanning=settings,
    )
    batch = batches("conv", 1, rank)[0]
    with captured_events() as logs:
        for step in range(STEPS):
            if step >= slow_from:
                time.sleep(SLOW_S)
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        report = optimizer.report()
        optimizer.close()
        for _ in range(600):
            told = [each for each in logs if each["event"].startswith("pace.report")]
            if rank or len(told) >= num_reports:
                break
            time.sleep(0.1)
    return report.source, report.predicted_iteration_s, [each["event"] for each in logs]


def _reports(folder: Path, *arguments: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """Train on two ranks; return what they said and the reports, newest first."""
    with ServiceProcess(folder) as service:
        with Client(service.url) as client:
            client.create_schedule(profile_of(sizes_of(build("conv")), 2), job=JOB)
        said = run_ranks(_train, 2, service.url, *arguments, timeout_s=200)
        return said, service.http.get("/v1/reports", params={"job": JOB}).json()["items"]


def test_a_job_reports_what_it_measured(tmp_path: Path) -> None:
    """After the first full window rank 0 sends the median; while nothing new shows, the next comes later."""
    (first, second), (stored,) = _reports(tmp_path, 1)
    assert first[0] == second[0] == "schedule"
    assert first[2].count("pace.report_sent") == 1
    assert not any(event.startswith("pace.report") for event in second[2])
    assert stored["predicted_iteration_s"] == first[1]
    assert stored["num_iterations"] == WINDOW
    assert stored["measured_iteration_s"] > 0
    assert stored["plain_iteration_s"] is None


def test_reports_go_on_while_a_job_trains(tmp_path: Path) -> None:
    """Every so often there is one of the latest window."""
    (first, _), stored = _reports(tmp_path, STEPS // 8, 1e9, 0.0)
    assert len(stored) == first[2].count("pace.report_sent") == STEPS // 8
    assert {each["predicted_iteration_s"] for each in stored} == {first[1]}


@pytest.mark.races_with_machine(
    reason="iterations that a busy machine makes as slow from the first on do not drift"
)
def test_drift_is_reported_as_it_shows(tmp_path: Path) -> None:
    """A job that becomes slower says so once, with what iterations take then."""
    (first, _), stored = _reports(tmp_path, 2, 3.0, 600.0, 9)
    assert first[2].count("pace.drift") == 1
    later, before = stored
    assert later["measured_iteration_s"] > SLOW_S > before["measured_iteration_s"]


def test_a_report_that_cannot_be_sent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it and nothing is raised; the log says why."""
    monkeypatch.setattr(plan_source, "_REPORT_TIMEOUT_S", 0.3)
    schedule = shuffled_schedule(build("conv"), 2, seed=1)
    with captured_events() as logs:
        sender = ReportSender("http://127.0.0.1:9", JOB, None)
        sender.send(schedule, measured_s=0.5, num_iterations=3, plain_s=None)
        for _ in range(600):
            sender.close()
            if logs:
                break
    (entry,) = logs
    assert entry["event"] == "pace.report_not_sent"
    assert "ServiceUnavailable" in entry["reason"]
