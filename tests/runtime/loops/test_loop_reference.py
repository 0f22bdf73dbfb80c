"""The reference of the random loops is judged itself: by training on all batches at once, and by DDP."""

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.runtime.loops.loop_models import LOOP_OPTIMIZERS, build_units, loss_of
from tests.runtime.loops.loop_program import Operation, Program
from tests.runtime.loops.loop_readings import Entry
from tests.runtime.loops.loop_reference import Reference, check_against_plain_training, differences
from tests.runtime.loops.loop_trainer import RankTrainer
from tests.runtime.loops.random_loops import num_loops, programs
from tests.runtime.rank_pool import RankPool

KINDS = ("linear", "norm", "convolution")


def _program(*operations: Operation, optimizer: str = "adam", **options: Any) -> Program:
    return Program(size=2, kinds=KINDS, optimizer=optimizer, operations=operations, options=options)


def test_reference_is_training_on_all_batches_at_once() -> None:
    """Clipping and two backward passes a step: the mean of both ranks' losses in one graph gives the same."""
    paths = ((0, 1, 2), (2, 0))
    step = (("compute", "once", paths), ("compute", "once", paths), ("norm", 0.1), ("step",))
    reference = Reference(_program())
    reference.run((*step, ("zero", "optimizer", True)) * 4)

    model = build_units(KINDS)
    optimizer = LOOP_OPTIMIZERS["adam"](model)
    for number in range(4):
        losses = [
            loss_of(model, path, 1000 * (2 * number + at) + rank)
            for at in (1, 2)
            for rank, path in enumerate(paths)
        ]
        torch.autograd.backward(torch.stack(losses).sum() / 2)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    for ours, theirs in zip(reference.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_what_no_rank_uses_is_left_alone() -> None:
    """Neither weight decay nor momentum touches a parameter without a gradient."""
    reference = Reference(_program(optimizer="sgd"))
    before = [parameter.detach().clone() for parameter in reference.model.units[1].parameters()]
    reference.run((("compute", "once", ((0,), (2,))), ("step",)) * 2)
    for now, earlier in zip(reference.model.units[1].parameters(), before, strict=True):
        assert now.grad is None
        assert torch.equal(now, earlier)
    assert any(parameter.grad is not None for parameter in reference.model.units[2].parameters())


def test_differences_are_found() -> None:
    """A value off by a billionth, a None and another shape are differences; what nobody can know is none."""
    entry = _entry([1.0, None, [2.0, 3.0]])
    assert not differences([[entry]], [[entry]])
    for other in ([1.0 + 1e-9, None, [2.0, 3.0]], [1.0, 0.0, [2.0, 3.0]], [1.0, None, [2.0]], None):
        assert differences([[_entry(other)]], [[entry]]), other
    assert not differences([[_entry(float("nan"))]], [[_entry(float("nan"))]])
    assert differences([[_entry(1.0)]], [[_entry(float("nan"))]])


def test_ranks_with_other_bits_differ() -> None:
    """Weights that are near but not the same on two ranks are a difference."""
    near = [_entry(torch.tensor([1.0 + 1e-12 * rank], dtype=torch.float64).numpy()) for rank in range(2)]
    assert differences([[each] for each in near], [[near[0]], [near[0]]])


def _entry(value: Any) -> Entry:
    return Entry(operation=("read",), value=value, same_bits=True)


class _DdpTrainer(RankTrainer):
    """The same loops under DistributedDataParallel."""

    def wrapped(self) -> Any:
        """Wrap the model instead."""
        self.call = nn.parallel.DistributedDataParallel(self.model, find_unused_parameters=True)
        return self.optimizer

    def close(self) -> None:
        """Nothing needs closing."""
        self.operation = ("close",)
        self._weights("state")


def train_with_ddp(rank: int, program: Program) -> list[Entry]:
    """Run a program under DDP."""
    trainer = _DdpTrainer(program, rank)
    trainer.run(program.operations)
    trainer.finish()
    trainer.close()
    return trainer.entries


def _as_ddp_can(program: Program) -> Program:
    """Leave out what DDP does not do; every one of its forward passes has a backward pass on every rank."""
    # torch.func cannot transform DDP's forward pass.
    left_out = {"no_sync", "assign", "log", "closure", "synchronize", "report", "loss", "forward", "freeze"}
    left_out |= {"func"}
    operations = []
    for operation in program.operations:
        if operation[0] in left_out:
            continue
        if operation[0] == "compute":
            paths = tuple(path or (0,) for path in operation[2])
            operations.append(("compute", "once", paths))
        else:
            operations.append(operation)
    kinds = tuple("linear" if kind == "checkpointed" else kind for kind in program.kinds)
    return Program(size=program.size, kinds=kinds, optimizer=program.optimizer, operations=tuple(operations))


@settings(max_examples=num_loops(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_reference_agrees_with_ddp(pool: RankPool, data: st.DataObject) -> None:
    """Random loops, as far as DDP can run them: what it shows and makes of the weights is the reference's."""
    program = _as_ddp_can(data.draw(programs(2)))
    found = pool.run(train_with_ddp, program)
    check_against_plain_training(found, program)
