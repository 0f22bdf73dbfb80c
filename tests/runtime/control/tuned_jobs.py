"""Jobs that search for their plan while they train, and what each rank saw of it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.runtime.logs import captured_events
from tests.runtime.models import batches, build, weights
from tests.runtime.training import OPTIMIZERS, Weights, backward, trainable

MOST_STEPS = 200


@dataclass(kw_only=True)
class Diary:
    """What one rank saw of one job.

    Attributes
    ----------
    plans
        The hash of each plan that came into force, with the step after which it did.
    """

    trained: Weights = field(default_factory=dict)
    steps: int = 0
    plans: list[tuple[int, str]] = field(default_factory=list)
    orders: list[str | None] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    tried: list[dict[str, Any]] = field(default_factory=list)
    measured_s: dict[str, float] = field(default_factory=dict)
    mode: str = ""
    start_bytes: float = 0.0


def tune_job(rank: int, backend: str, options: dict[str, Any]) -> Diary:
    """Train until the search has a winner, and a few steps more."""
    diary = Diary()
    with captured_events() as logs:
        model = build("conv")
        plain = OPTIMIZERS["sgd"](trainable(model))
        optimizer: Any
        if backend == "horovod":
            import pace.runtime.horovod

            pace.runtime.horovod.init()
            optimizer = pace.runtime.horovod.DistributedOptimizer(plain, model=model, **options)
        else:
            import pace.runtime.torch

            optimizer = pace.runtime.torch.DistributedOptimizer(plain, model, **options)
        left = 5
        for batch in batches("conv", MOST_STEPS, rank):
            plan = optimizer._plan
            if not diary.plans or diary.plans[-1][1] != plan.sha256:
                diary.plans.append((diary.steps, plan.sha256))
                diary.orders.append(plan.order)
            if optimizer._choice.measured_s:
                left -= 1
            if left < 0:
                break
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
            diary.steps += 1
        report = optimizer.report()
        diary.measured_s, diary.mode = report.trial_s, report.mode
        diary.trained = weights(model)
        optimizer.close()
    diary.events.update(entry["event"] for entry in logs)
    diary.tried = [entry for entry in logs if entry["event"] == "pace.tuning_trial"]
    diary.start_bytes = sum(entry["start_bytes"] for entry in logs if entry["event"] == "pace.tuning")
    return diary
