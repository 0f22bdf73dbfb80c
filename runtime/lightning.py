"""PACE in Lightning: ``import pace.runtime.lightning``, then ``Trainer(strategy="pace")``.

Needs Lightning 2 (``pip install 'pace-scheduler[lightning]'``). The import registers the strategy: Lightning
does not search installed packages.
"""

from inspect import signature
from typing import Any

from torch.nn.parallel import DistributedDataParallel

try:
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError as error:
    raise ImportError(
        "pace.runtime.lightning needs Lightning: pip install 'pace-scheduler[lightning]'", name=error.name
    ) from error

from pace.errors import InvalidUse
from pace.runtime.ddp import AttachedOptimizer, attach
from pace.runtime.entry_point import TrainingOptions, split_options
from pace.runtime.loggers import metrics_of
from pace.runtime.options import AllReduce, Plan, Replanning, Tune, refuse_unknown

__all__ = ["AllReduce", "PaceReport", "PaceStrategy", "Plan", "Replanning", "Tune"]


_NO_OPTIONS = {"self", "kwargs", "module"}


class PaceStrategy(DDPStrategy):
    """Lightning's DDP strategy, with gradients summed by PACE.

    Parameters
    ----------
    plan, communication, mode, timeout_s
        The options of ``pace.runtime.ddp.attach``. PACE_URL and PACE_JOB may name service and job.
    options
        All other arguments of ``DDPStrategy``.

    Attributes
    ----------
    pace
        The wrapper, while the Trainer fits a model.
    """

    strategy_name = "pace"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._training, own = split_options(PaceStrategy, options)
        theirs = {*signature(DDPStrategy).parameters, *signature(DistributedDataParallel).parameters}
        refuse_unknown("PaceStrategy", (*TrainingOptions.__annotations__, *sorted(theirs - _NO_OPTIONS)), own)
        super().__init__(*arguments, **own)
        self._raised: BaseException | None = None
        self.pace: AttachedOptimizer | None = None

    def setup(self, trainer: Trainer) -> None:
        """Set up as the DDP strategy does, then attach PACE.

        Raises
        ------
        InvalidUse
            If the module has several optimizers or none, or averages models itself.
        """
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING or not isinstance(self.model, DistributedDataParallel):
            return
        if len(self.optimizers) != 1:
            raise InvalidUse(
                f"the module has {len(self.optimizers)} optimizers: with strategy='pace' one is needed, for"
                " all parameters that are trained; use strategy='ddp' for several"
            )
        if self._model_averager is not None or self._ddp_comm_hook is not None:
            raise InvalidUse(
                "ddp_comm_hook= would not be called: for half precision give AllReduce(compression=...)"
            )
        self._attach(self.model)

    def _attach(self, model: DistributedDataParallel) -> None:
        self.pace = attach(model, self.optimizers[0], **self._training)
        self.optimizers = self.optimizers  # Lightning's own wrappers are made anew, with PACE's step()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Attach PACE again after callbacks unfroze parameters, as callbacks for fine-tuning do."""
        super().on_train_batch_start(batch, batch_idx)
        if self.pace is not None and self.pace.parameters_changed:
            assert isinstance(self.model, DistributedDataParallel)
            pace, self.pace = self.pace, None
            pace.close()
            self._attach(self.model)

    def on_exception(self, exception: BaseException) -> None:
        """Remember that training has failed."""
        self._raised = exception
        super().on_exception(exception)

    def teardown(self) -> None:
        """Finish what is in flight, then tear down as the DDP strategy does."""
        pace, self.pace = self.pace, None
        raised, self._raised = self._raised, None
        try:
            if pace is not None:
                pace.__exit__(None if raised is None else type(raised), raised, None)
        finally:
            super().teardown()

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Register "pace", and "pace_find_unused_parameters_true" for those who have it for "ddp"."""
        for name, options in {
            "pace": {},
            "pace_find_unused_parameters_true": {"find_unused_parameters": True},
        }.items():
            strategy_registry.register(
                name, cls, description="DDP with gradients summed by PACE", override=True, **options
            )


class PaceReport(Callback):
    """Logs ``report()`` through the Trainer's loggers: ``Trainer(callbacks=[PaceReport()])``.

    Parameters
    ----------
    every_n_steps
        Number of steps between two logs; default: the Trainer's own.
    """

    def __init__(self, every_n_steps: int | None = None) -> None:
        self._every_n_steps = every_n_steps

    def on_train_batch_end(self, trainer: Trainer, *_arguments: Any, **_named: Any) -> None:
        """Log after a step."""
        pace = getattr(trainer.strategy, "pace", None)
        every = self._every_n_steps or max(getattr(trainer, "log_every_n_steps", 50), 1)
        step = trainer.global_step
        if isinstance(pace, AttachedOptimizer) and step and step % every == 0:
            metrics = metrics_of(pace.report(wait=False))
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=step)


PaceStrategy.register_strategies(StrategyRegistry)
