"""``report()`` for the tools that people watch training with; each is given its own logger.

Nothing here imports their packages: a user with such a logger has its package.
"""

from typing import Any, Protocol

from pace.runtime.engine.report import Report

__all__ = ["log_to_tensorboard", "log_to_wandb", "metrics_of"]


class ScalarWriter(Protocol):
    """What of ``torch.utils.tensorboard.SummaryWriter`` is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        """Write one number."""

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        """Write a text."""


class MetricsRun(Protocol):
    """What of a Weights & Biases run is used."""

    summary: Any

    def log(self, data: dict[str, Any], step: int | None = None) -> None:
        """Log numbers."""


def metrics_of(report: Report) -> dict[str, float]:
    """Return a report's numbers by name, as "pace/iteration_s"; what is not known is left out.

    Times are in seconds. ``pace/waited_s``, ``pace/sent_bytes``, ``pace/sent_segments``, ``pace/rounds`` and
    ``pace/profiles`` count from the start.
    """
    numbers = {
        "iteration_s": report.iteration_s,
        "predicted_iteration_s": report.predicted_iteration_s,
        "waited_s": report.waited_s,
        "sent_bytes": report.sent_bytes,
        "sent_segments": report.sent_segments,
        "rounds": report.rounds,
        "profiles": report.profiles,
        "drift": report.drift,
        **{f"trial_s/{mode}": seconds for mode, seconds in report.trial_s.items()},
    }
    return {f"pace/{name}": float(value) for name, value in numbers.items() if value is not None}


def log_to_tensorboard(report: Report, writer: ScalarWriter, step: int) -> None:
    """Write a report to TensorBoard: numbers as scalars, what runs as text."""
    for name, value in metrics_of(report).items():
        writer.add_scalar(name, value, step)
    writer.add_text("pace/running", _running(report), step)


def log_to_wandb(report: Report, run: MetricsRun, step: int | None = None) -> None:
    """Log a report to a Weights & Biases run: numbers to its history, what runs to its summary."""
    run.log(dict(metrics_of(report)), step=step)
    run.summary.update({"pace/running": _running(report)})


def _running(report: Report) -> str:
    return f"mode {report.mode}, order {report.order}, plan {report.source}, replanning {report.replanning}"
