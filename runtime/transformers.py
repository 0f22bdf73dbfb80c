"""PACE in the Hugging Face Trainer: ``class MyTrainer(PaceMixin, Trainer)``.

Needs Transformers and Accelerate (``pip install 'pace-scheduler[accelerate]' transformers``).
"""

from typing import Any, Unpack

from pace.runtime import accelerate
from pace.runtime.ddp import AttachedOptimizer
from pace.runtime.entry_point import TrainingOptions, refuse_unknown_arguments, split_options
from pace.runtime.loggers import metrics_of
from pace.runtime.options import AllReduce, Plan, Replanning, Tune

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "pace.runtime.transformers needs Transformers: pip install transformers", name=error.name
    ) from error

__all__ = ["AllReduce", "PaceCallback", "PaceMixin", "Plan", "Replanning", "Tune"]


class PaceCallback(TrainerCallback):
    """Attaches PACE at the start of training and closes it at the end.

    Parameters
    ----------
    trainer
        The Trainer, which holds the wrapped model.
    plan, communication, mode, timeout_s
        The options of ``pace.runtime.ddp.attach``.
    """

    def __init__(self, trainer: Any, **training: Unpack[TrainingOptions]) -> None:
        refuse_unknown_arguments(PaceCallback, training)
        self._trainer = trainer
        self._training = training
        self.pace: AttachedOptimizer | None = None

    def on_train_begin(self, *_arguments: Any, **_named: Any) -> None:
        """Attach: model and optimizer are prepared, and loaded if training resumes."""
        self._close()  # after an attempt that ran out of memory, with auto_find_batch_size
        trainer = self._trainer
        self.pace = accelerate.attach(
            trainer.accelerator, trainer.model_wrapped, trainer.optimizer, **self._training
        )

    def on_train_end(self, *_arguments: Any, **_named: Any) -> None:
        """Finish what is in flight."""
        self._close()

    def close_after(self, error: BaseException) -> None:
        """Finish what is in flight after a training that failed: the Trainer does not tell callbacks."""
        pace, self.pace = self.pace, None
        if pace is not None:
            pace.__exit__(type(error), error, None)

    def _close(self) -> None:
        pace, self.pace = self.pace, None
        if pace is not None:
            pace.close()


class PaceMixin:
    """Base class to put before ``Trainer``; adds the numbers of ``report()`` to the Trainer's logs.

    Parameters
    ----------
    plan, communication, mode, timeout_s
        The options of ``pace.runtime.ddp.attach``. PACE_URL and PACE_JOB may name service and job.
    arguments, options
        The Trainer's own.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        training, own = split_options(PaceMixin, options)
        trainer: Any = super()
        trainer.__init__(*arguments, **own)
        self.pace_callback = PaceCallback(self, **training)
        trainer.add_callback(self.pace_callback)

    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train; a training that fails closes PACE too, so that the model can be trained otherwise."""
        trainer: Any = super()
        try:
            return trainer.train(*arguments, **named)
        except BaseException as error:
            self.pace_callback.close_after(error)
            raise

    def log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        """Log, with PACE's numbers while training."""
        pace = self.pace_callback.pace
        if pace is not None and "loss" in logs:  # of training, not of an evaluation
            logs.update(metrics_of(pace.report(wait=False)))
        trainer: Any = super()
        trainer.log(logs, *arguments, **named)
