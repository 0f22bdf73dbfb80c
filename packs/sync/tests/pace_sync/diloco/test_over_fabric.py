"""Outer steps over a fabric, and the fabric's example as DiLoCo."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.commit_log import LoggedCommit, violations
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.torch_loop import load_row, row_of
from pace_sync.diloco import OuterStep
from tests.pace_fabric.runtime.processes import TOKEN, WITHIN_S, Fabric
from tests.pace_fabric.runtime.test_torch_loop import EXAMPLE, build
from tests.runtime.programs import ForkedProgram


def test_outer_steps_are_those_of_one_process(tmp_path: Path) -> None:
    """Three members with weights end with one model: the weighted mean of their changes, with Nesterov."""
    changes, weights = np.random.default_rng(0).normal(size=(2, 3, 10)).astype(np.float32), [1.0, 2.0, 5.0]

    def outer_of(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)

    def member(fabric: FabricClient, model: nn.Module, rank: int) -> np.ndarray:
        step = OuterStep(model, outer_of, fabric, members=3)
        for change in changes:
            load_row(model, row_of(model) + change[rank])
            step.step(weight=weights[rank])
        return row_of(model)

    with Fabric(tmp_path, 3, SchedulerOptions(tick_s=0.02), numbers=10) as fabric:
        clients = [fabric.client(rank) for rank in range(3)]
        models = [build() for _ in clients]  # torch's seed is the process's: one after the other
        with ThreadPoolExecutor(3) as threads:
            calls = [
                threads.submit(member, client, model, rank)
                for rank, (client, model) in enumerate(zip(clients, models, strict=True))
            ]
            found = [call.result() for call in calls]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    alone = build()
    outer = outer_of(list(alone.parameters()))
    for change in changes:
        mean = torch.from_numpy(np.average(change, axis=0, weights=weights).astype(np.float32))
        alone.weight.grad, alone.bias.grad = -mean[:8].view(2, 4), -mean[8:]
        outer.step()
    assert np.allclose(found[0], row_of(alone), atol=1e-5)


@pytest.mark.slow
def test_the_example_trains_as_diloco(tmp_path: Path) -> None:
    """Two workers as DiLoCo and one asynchronously: outer models are equal, no bound is broken."""
    options = SchedulerOptions(delay_bound=4, tick_s=0.02)
    with Fabric(tmp_path, 3, options, numbers=8 * 16 + 16 + 16 + 1) as fabric:
        with ExitStack() as stack:
            workers = [
                stack.enter_context(
                    ForkedProgram(
                        *("file", EXAMPLE, "--rounds", 3, "--rank", rank),
                        *("--daemon", fabric.members[f"h{rank}"].address, *diloco),
                        environment={"PACE_FABRIC_TOKEN": TOKEN},
                    )
                )
                for rank, diloco in enumerate((["--diloco"], ["--diloco"], []))
            ]
            ended = [worker.result(WITHIN_S) for worker in workers]
        assert [each.returncode for each in ended] == [0, 0, 0], ended
        said = [each.stdout for each in ended]
        assert said[0].partition("parameters")[2] == said[1].partition("parameters")[2] != ""
        assert "3 of 3 updates committed" in said[2]
        assert violations(fabric.log(), 4) == []
        assert sum(isinstance(line, LoggedCommit) for line in fabric.log()) == 3
