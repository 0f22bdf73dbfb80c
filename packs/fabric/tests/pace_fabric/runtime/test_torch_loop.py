"""Loops of torch on a fabric: rows and parameters, and the example as it is."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pace.errors import InvalidUse
from pace_fabric.runtime.commit_log import LoggedCommit, violations
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.torch_loop import AsynchronousWorker, load_row, row_of
from tests.pace_fabric.runtime.processes import TOKEN, WITHIN_S, Fabric
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
    """A worker whose updates are all committed; no bound is broken."""
    options = SchedulerOptions(delay_bound=4, tick_s=0.02)
    with Fabric(tmp_path, 1, options, numbers=8 * 16 + 16 + 16 + 1) as fabric:
        daemon = fabric.members["h0"].address
        with ForkedProgram(
            *("file", EXAMPLE, "--rounds", 3, "--daemon", daemon), environment={"PACE_FABRIC_TOKEN": TOKEN}
        ) as worker:
            ended = worker.result(WITHIN_S)
        assert ended.returncode == 0, ended
        assert "3 of 3 updates committed" in ended.stdout
        assert violations(fabric.log(), 4) == []
        assert sum(isinstance(line, LoggedCommit) for line in fabric.log()) == 3
