"""DiLoCo with members that come and go: models stay equal, in float32 and in 16 bits."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pace.errors import InvalidUse
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.torch_loop import load_row, row_of
from pace_fabric.runtime.update_records import NumberFormat
from pace_sync.diloco import ElasticOuterStep
from tests.pace_fabric.runtime.processes import Fabric
from tests.pace_sync.diloco.streaming_reference import (
    OuterReference,
    Sent,
    change_narrow,
    flat,
    outer_optimizer,
)


def build(seed: int, dtype: torch.dtype) -> nn.Linear:
    """Return a small model; its seed is the process's."""
    torch.manual_seed(seed)
    return nn.Linear(40, 20, dtype=dtype)


def outer_step(fabric: FabricClient, model: nn.Module, form: NumberFormat) -> ElasticOuterStep:
    """Return a member of a group that needs two."""
    return ElasticOuterStep(model, outer_optimizer, fabric, members=2, quorum=2, deadline_s=60.0, form=form)


@pytest.mark.parametrize(
    ("dtype", "form"),
    [(torch.float32, "float32"), (torch.bfloat16, "bfloat16"), (torch.float16, "int8")],
)
def test_newcomers_have_the_bits_of_the_others(
    tmp_path: Path, dtype: torch.dtype, form: NumberFormat
) -> None:
    """One of two leaves after two rounds; one with other weights takes its place, momentum included."""
    with Fabric(tmp_path, 2, SchedulerOptions(tick_s=0.02), without_server=True) as fabric:
        models = [build(seed, dtype) for seed in (0, 0, 1)]
        members = [
            outer_step(fabric.client(number % 2, f"w{number}"), model, form)
            for number, model in enumerate(models)
        ]

        def train(place: int, rounds: int) -> None:
            model = models[place]
            for _ in range(rounds):
                noise = np.random.default_rng([place, members[place].rounds]).normal(size=820)
                load_row(model, row_of(model) + noise.astype(np.float32))
                assert members[place].step(weight=1.0 + place)

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(lambda each: each.join(), members[:2])) == [False, False]
            list(threads.map(lambda place: train(place, 2), (0, 1)))
            assert torch.equal(models[0].weight, models[1].weight)
            members[1].leave()
            staying = threads.submit(train, 0, 2)
            assert members[2].join() is True
            assert members[2].rounds == 3
            train(2, 1)
            staying.result()
        assert torch.equal(models[0].weight, models[2].weight)
        assert torch.equal(models[0].bias, models[2].bias)
        assert members[0].state() == members[2].state()
        assert not torch.equal(models[0].weight, models[1].weight)
        with pytest.raises(InvalidUse, match=r"step\(\) before join"):
            members[1].step()
        with pytest.raises(InvalidUse, match="the state has 820 parameters, but the model has 3"):
            outer_step(fabric.clients[0], nn.Linear(2, 1), form).load_state(members[0].state())


def test_groups_begin_from_a_checkpoint(tmp_path: Path) -> None:
    """All processes end; one has a checkpoint, and the other one takes its state."""
    with Fabric(tmp_path, 1, SchedulerOptions(tick_s=0.02), without_server=True) as fabric:
        saved = outer_step(fabric.client(0, "old"), build(0, torch.float32), "float32")
        saved.rounds = 5
        models = [build(seed, torch.float32) for seed in (1, 2)]
        members = [outer_step(fabric.client(0), model, "float32") for model in models]
        members[0].load_state(saved.state())

        def run(member: ElasticOuterStep) -> bool:
            newcomer = member.join()
            if not newcomer:
                member.step()
            return newcomer

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(run, members)) == [False, True]
        assert [member.rounds for member in members] == [6, 6]
        assert torch.equal(models[0].weight, models[1].weight)
        assert torch.equal(models[0].weight, build(0, torch.float32).weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_outer_model_of_narrow_workers_is_that_of_wide_ones(tmp_path: Path, dtype: torch.dtype) -> None:
    """The same changes, once in 16 bits and once in float32, move the outer model alike: none is lost."""
    rounds = 12
    with Fabric(tmp_path, 2, SchedulerOptions(tick_s=0.02), without_server=True) as fabric:
        models = [build(0, dtype) for _ in range(2)]
        members = [
            outer_step(fabric.client(place, f"w{place}"), model, "float32")
            for place, model in enumerate(models)
        ]

        def train(place: int) -> list[torch.Tensor]:
            members[place].join()
            changes = []
            for number in range(1, rounds + 1):
                changes.append(change_narrow(models[place], place, number))
                assert members[place].step(weight=1.0 + place)
            return changes

        with ThreadPoolExecutor(2) as threads:
            changes = list(threads.map(train, (0, 1)))
        outer = [torch.load(io.BytesIO(each.state()))["row"] for each in members]
    first = flat(build(0, dtype)).float()
    reference = OuterReference(first, [Sent([(0, len(first))], 0, 0)], period=1, mix=0.0, weights=[1.0, 2.0])
    rows = [first, first]
    for number in range(rounds):
        rows = [row + each[number] for row, each in zip(rows, changes, strict=True)]
        rows = reference.after_step(number + 1, rows)
    assert torch.equal(outer[0], outer[1])
    torch.testing.assert_close(outer[0], reference.outer[0], rtol=1e-5, atol=1e-6)
    assert torch.equal(flat(models[0]), outer[0].to(dtype))
