"""Where the runtime's log goes, and which ranks write to it."""

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import pace.runtime.control.plan_source
from pace.runtime.capture.recorder import warn_if_inexact
from pace.runtime.event_log import log
from tests.api.process import ServiceProcess
from tests.runtime.launch import run_ranks
from tests.runtime.logs import captured_events
from tests.runtime.models import batches, build
from tests.runtime.programs import script
from tests.runtime.schedules import profile_of, shuffled_schedule, sizes_of
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap

# Nobody listens there: the port is reserved.
NOWHERE = "http://127.0.0.1:9"


@contextmanager
def _written(folder: str) -> Iterator[list[Path]]:
    """Collect what this process writes to stdout and stderr, whoever writes it and how."""
    paths = [Path(folder, "stdout"), Path(folder, "stderr")]
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    for number, path in enumerate(paths, start=1):
        with path.open("wb") as file:
            os.dup2(file.fileno(), number)
    try:
        yield paths
    finally:
        sys.stdout.flush()
        for number, descriptor in enumerate(kept, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _train(rank: int, *, steps: int = 200, fails: bool = False) -> None:
    model = build("conv")
    with torch.no_grad():
        next(model.parameters()).add_(rank)  # so that rank 0's weights have to be sent
    inner = OPTIMIZERS["sgd"](trainable(model))
    optimizer = wrap("gloo", inner, model, mode="auto", service=NOWHERE, job="logs", timeout_s=20.0)
    batch = batches("conv", 1, rank)[0]
    while steps and not optimizer.report().trial_s:
        steps -= 1
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
    if fails:
        with pytest.raises(KeyError), optimizer:
            raise KeyError("the user's own")
    optimizer.close()


def _train_shortly(rank: int, _size: int) -> list[tuple[str, object]]:
    os.environ["PACE_PROFILE_ITERATIONS"] = "0"
    with captured_events() as events:
        _train(rank, steps=3)
    return [(each["event"], each.get("mode")) for each in events]


def test_a_run_that_ends_in_its_trial_says_so() -> None:
    """Once, by rank 0, with the mode that ran last; nothing was chosen."""
    told, others = run_ranks(_train_shortly, 2)
    assert ("pace.ended_in_trial", "barrier") in told
    assert "pace.mode_chosen" not in dict(told)
    assert others == []


def _fail_shortly(rank: int, _size: int) -> list[str]:
    os.environ["PACE_PROFILE_ITERATIONS"] = "2"  # recorded after the first step
    with captured_events() as events:
        _train(rank, steps=2, fails=True)
    return [each["event"] for each in events]


def test_a_run_that_fails_is_not_told_to_train_for_longer() -> None:
    """Its own error is the last word: the number of steps has not been the cause."""
    for told in run_ranks(_fail_shortly, 2):
        assert not {"pace.ended_in_trial", "pace.ended_without_schedule"} & {*told}


def _train_twice(rank: int, _size: int) -> tuple[str, str, list[str]]:
    os.environ["PACE_PROFILE_ITERATIONS"] = "0"
    with tempfile.TemporaryDirectory() as folder, _written(folder) as (stdout, stderr):
        _train(rank)
        sys.stdout.flush()
        texts = stdout.read_text(), stderr.read_text()
    with captured_events() as events:
        _train(rank)
    return *texts, [each["event"] for each in events]


def test_only_rank_0_logs_and_never_to_stdout() -> None:
    """Warnings go to stderr without any set-up, the rest to whoever asks ``logging`` for it."""
    (stdout, stderr, events), *others = run_ranks(_train_twice, 2)
    assert stdout == ""
    told = ["wrapped", "service_unavailable", "weights_broadcast", "trial", "mode_chosen"]
    assert events == [f"pace.{each}" for each in (*told, "ended_without_schedule")]
    assert [line.split()[0] for line in stderr.splitlines()] == events
    assert "consequence='training goes on, and the job asks again'" in stderr
    assert "the schedule has not come: see that the service runs; when it has logged `solved`, run" in stderr
    assert others == [("", "", [])]


def _train_on(rank: int, _size: int, bound_s: float) -> list[dict[str, Any]]:
    model = build("conv")
    schedule = shuffled_schedule(model, 2, seed=0)
    told = schedule.predicted.model_copy(update={"lower_bound_s": bound_s})
    schedule = schedule.model_copy(update={"predicted": told})
    inner = OPTIMIZERS["sgd"](trainable(model))
    with captured_events() as events:
        optimizer = wrap("gloo", inner, model, mode="auto", schedule=schedule)
        batch = batches("conv", 1, rank)[0]
        while not optimizer.report().trial_s:
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        optimizer.close()
    return events


def test_training_that_is_faster_than_its_schedule_allows_is_told() -> None:
    """Only then: the profile was of a slower machine."""
    for bound_s, doubted in ((1000.0, True), (1e-9, False)):
        told, others = run_ranks(_train_on, 2, bound_s)
        assert [each["event"] for each in told].count("pace.faster_than_bound") == doubted
        assert others == []


def _train_with(rank: int, _size: int, url: str, starts: int) -> list[list[str]]:
    pace.runtime.control.plan_source._START_TIMEOUT_S = 60.0
    os.environ["PACE_PROFILE_ITERATIONS"] = "2"
    found = []
    for _ in range(starts):
        model = build("conv")
        with tempfile.TemporaryDirectory() as folder, _written(folder) as (_, stderr):
            inner = OPTIMIZERS["sgd"](trainable(model))
            optimizer = wrap("gloo", inner, model, mode="auto", service=url, job="told")
            batch = batches("conv", 1, rank)[0]
            deadline = time.monotonic() + 100.0
            # The trial of the schedule, not that of the groups before it.
            while not (optimizer._choice.replanner.has_schedule and optimizer._choice.measured_s):
                assert time.monotonic() < deadline
                optimizer.zero_grad()
                backward(model(*batch))
                optimizer.step()
                if optimizer._choice._trial is not None:
                    optimizer._choice.measured_s = {}
            optimizer.close()
            found.append(stderr.read_text().splitlines())
    # Times of a busy machine may contradict one another.
    return [[line for line in lines if not line.startswith("pace.faster_than_bound")] for lines in found]


def test_rank_0_tells_the_story_in_ten_lines(tmp_path: Path) -> None:
    """Without any set-up: what is trained, what was found or made, what is kept and what it gains."""
    with ServiceProcess(tmp_path) as service:
        (first, second), others = run_ranks(_train_with, 2, service.url, 2, timeout_s=250)
    assert others == [[], []]
    chosen = ["pace.trial", "pace.mode_chosen"]
    events = [line.split()[0] for line in first if not line.startswith("pace.capture_inexact")]
    assert events[:3] == ["pace.wrapped", "pace.no_schedule_yet", "pace.profiling"]
    assert events[-3:] == ["pace.schedule_adopted", *chosen]
    assert "pace.profile_submitted" in events
    assert [line.split()[0] for line in second] == ["pace.wrapped", "pace.schedule_found", *chosen]
    assert max(len(first), len(second)) <= 10
    assert re.search(r"gradients=\d+ megabytes=[\d.e-]+ ranks=2 mode='auto'$", second[0])
    assert re.search(r"groups=\d+ predicted_iteration_s=[\d.e-]+ bound_s=[\d.e-]+$", second[1])
    assert re.search(r"modes=\['plain', 'barrier', 'overlap'\] steps=\d+$", second[2])
    assert re.search(r"speedup=[\d.]+$", second[3])
    for number in re.findall(r"\d+\.\d+", "\n".join([*first, *second])):
        assert len(number.replace(".", "").strip("0")) <= 3 or number.startswith("127."), number


def test_importing_sets_up_no_logs() -> None:
    """Neither structlog's configuration nor a handler of ``logging``."""
    program = (
        "import logging, structlog, pace.runtime.torch, pace.runtime.profiler\n"
        "assert not structlog.is_configured()\n"
        "assert not logging.getLogger().handlers\n"
        "assert not any(getattr(each, 'handlers', ()) for name, each in"
        " logging.Logger.manager.loggerDict.items() if name.startswith('pace'))\n"
        "assert logging.getLogger('pace.runtime').level == logging.NOTSET\n"
    )
    with script(program) as loaded:
        ended = loaded.result()
    assert ended.returncode == 0, ended.stderr


def test_a_profile_far_off_the_plain_iterations_is_worth_a_warning() -> None:
    """More than a tenth too long or too short; the profile is used all the same."""
    profile = profile_of(sizes_of(build("conv")), 2)
    with captured_events() as events:
        for error in (0.05, -0.05, 0.2, -0.3):
            found = {"capture_error": error, "capture_overhead": 0.0, "plain_iteration_s": 1.0}
            warn_if_inexact(profile.model_copy(update={"metadata": found}))
    assert [(each["event"], each["error"]) for each in events] == [
        ("pace.capture_inexact", 0.2),
        ("pace.capture_inexact", -0.3),
    ]


def test_a_record_holds_the_event_the_values_and_the_place(caplog: pytest.LogCaptureFixture) -> None:
    """As text for people, as attributes for whoever formats records as JSON."""
    log.warning("pace.something", reason="100 % idle", ranks=[1, 2])
    (record,) = caplog.records
    found: Any = record
    assert record.getMessage() == "pace.something reason='100 % idle' ranks=[1, 2]"
    assert (found.pace_event, found.pace_values) == (
        "pace.something",
        {"reason": "100 % idle", "ranks": [1, 2]},
    )
    assert (record.name, record.filename) == ("pace.runtime", Path(__file__).name)
