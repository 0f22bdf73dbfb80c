"""Loops of torch on a fabric: rows and parameters, outer steps, and the example as it is."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pace.errors import InvalidUse
from pace.runtime.diloco import OuterStep
from pace.runtime.fabric.client import FabricClient
from pace.runtime.fabric.commit_log import LoggedCommit, violations
from pace.runtime.fabric.scheduling.scheduler_options import SchedulerOptions
from pace.runtime.fabric.torch_loop import AsynchronousWorker, load_row, row_of
from tests.runtime.fabric.processes import TOKEN, WITHIN_S, Fabric
from tests.runtime.programs import ForkedProgram

EXAMPLE = Path(__file__).parents[3] / "examples" / "fabric_training.py"


def build() -> nn.Linear:
    """Return the same small model every time."""
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def test_rows_hold_all_parameters() -> None:
    """A row survives the way into another model; one of another length is refused."""
    first, second = build(), nn.Linear(4, 2)
    load_row(second, row_of(first))
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)
    with pytest.raises(InvalidUse, match="10 parameters"):
        load_row(second, np.zeros(3, dtype=np.float32))


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


def test_an_asynchronous_worker_moves_the_server(tmp_path: Path) -> None:
    """What one worker changes is what the server has afterwards."""
    with Fabric(tmp_path, 1, SchedulerOptions(tick_s=0.02), numbers=10) as fabric:
        model = build()
        worker = AsynchronousWorker(model, fabric.client(0), most_under_way=0)
        with pytest.raises(InvalidUse, match=r"push\(\) before pull"):
            worker.push()
        for version in range(3):
            assert worker.pull() == version
            with torch.no_grad():
                model.bias.add_(1.0)
            worker.push()
        assert [end.outcome for end in worker.finish()] == ["committed"] * 3
        worker.pull()
        assert np.allclose(row_of(model)[8:], fabric.first[8:] + 3.0, atol=1e-5)


@pytest.mark.slow
def test_the_example_trains(tmp_path: Path) -> None:
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
