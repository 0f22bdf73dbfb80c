"""Modules that are traced or scripted in the midst of training share the model's parameters."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.loops.beside_plain import assert_trains_as_plainly
from tests.runtime.loops.loop_run import Loop, Run
from tests.runtime.rank_pool import RankPool


def _train(run: Run, *, traced: bool, whole: bool) -> None:
    model = run.build(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    optimizer = run.wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    part = model if whole else model[2]
    batch = run.batch(0, 2, 3 if whole else 4)
    compiled = None
    for step in range(run.steps):
        if step == 3:
            make: Any = torch.jit.trace if traced else torch.jit.script
            compiled = make(part, batch) if traced else make(part)
        optimizer.zero_grad()
        torch.autograd.backward(model(run.batch(step, 2, 3)).mean())
        run.average(model)
        optimizer.step()
        if compiled is not None:
            run.see(compiled(batch))


def traced_model(run: Run) -> None:
    """The whole model is traced, and called after each step."""
    _train(run, traced=True, whole=True)


def traced_part(run: Run) -> None:
    """So is one of its modules."""
    _train(run, traced=True, whole=False)


def scripted_part(run: Run) -> None:
    """One of its modules is scripted."""
    _train(run, traced=False, whole=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("loop", [traced_model, traced_part, scripted_part], ids=lambda loop: loop.__name__)
def test_compiled_modules_see_every_update(pool: RankPool, loop: Loop) -> None:
    """As in plain training, from the step after which they were compiled."""
    assert_trains_as_plainly(pool, loop, steps=8, mode="overlap")
