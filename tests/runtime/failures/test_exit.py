"""How a process ends that never called ``close()``."""

import subprocess
import sys

import pytest
from torch._C._distributed_c10d import TCPStore

_SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from pace.runtime.torch import DistributedOptimizer

rank, port = int(sys.argv[1]), int(sys.argv[2])
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, 2), rank=rank, world_size=2)
model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.Linear(1000, 1000))
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, timeout_s=20.0)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_script_that_does_not_close_its_wrapper_ends_with_its_own_status() -> None:
    """Its last sums are under way: no thread of the runtime outlives the interpreter, which would abort."""
    store = TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(rank), str(store.port)], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=280)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors
