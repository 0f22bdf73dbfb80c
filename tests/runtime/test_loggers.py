"""Reports in TensorBoard, read back from its files, and what a run of Weights & Biases would be given."""

from pathlib import Path
from typing import Any

import pytest

from pace.runtime.engine.report import Report
from pace.runtime.loggers import log_to_tensorboard, log_to_wandb, metrics_of

REPORT = Report(
    mode="overlap",
    order="static",
    source="schedule",
    rounds=40,
    iteration_s=0.25,
    predicted_iteration_s=0.24,
    trial_s={"plain": 0.5, "overlap": 0.25},
    sent_segments=7,
    sent_bytes=1024,
    waited_s=1.5,
    groups=(),
    segments=(),
)

NUMBERS = {
    "pace/rounds": 40,
    "pace/iteration_s": 0.25,
    "pace/predicted_iteration_s": 0.24,
    "pace/trial_s/plain": 0.5,
    "pace/trial_s/overlap": 0.25,
    "pace/sent_segments": 7,
    "pace/sent_bytes": 1024,
    "pace/waited_s": 1.5,
    "pace/profiles": 0,
}


def test_what_is_not_known_is_left_out() -> None:
    """Drift without a schedule to compare with; everything else by its name."""
    assert metrics_of(REPORT) == NUMBERS


@pytest.mark.slow
def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    """By its own reader, at the step."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard.writer import SummaryWriter

    writer: Any = SummaryWriter(str(tmp_path))
    log_to_tensorboard(REPORT, writer, 12)
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert set(events.Tags()["scalars"]) == NUMBERS.keys()
    for name, value in NUMBERS.items():
        [event] = events.Scalars(name)
        assert (event.step, event.value) == (12, pytest.approx(value, rel=1e-6))


class History:
    """Keeps what a run is given, as a run of Weights & Biases does."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] = {}
        self.rows: list[tuple[dict[str, Any], int | None]] = []

    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        """Add a row."""
        self.rows.append((data, step))


def test_a_run_gets_numbers_and_what_runs() -> None:
    """Weights & Biases itself was not run: it is no part of the development environment."""
    run = History()
    log_to_wandb(REPORT, run, 12)
    assert run.rows == [(NUMBERS, 12)]
    assert run.summary["pace/running"] == "mode overlap, order static, plan schedule, replanning none"
