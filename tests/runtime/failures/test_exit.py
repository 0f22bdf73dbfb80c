"""How a process ends that never called ``close()``."""

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.runtime.programs import script

_SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from pace.runtime.torch import DistributedOptimizer

rank, port, raising = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, 2), rank=rank, world_size=2)
model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.Linear(1000, 1000))
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, timeout_s=20.0)
for step in range(5):
    optimizer.zero_grad()
    model(torch.ones(1, 1000)).sum().backward()
    if step == 2 and rank == 1 and raising == "before the step":
        raise ValueError(raising)
    optimizer.step()
    if step == 2 and rank == 1 and raising == "after the step":
        raise ValueError(raising)
dist.destroy_process_group()
"""


def _run(raising: str) -> tuple[list[int], list[str]]:
    """Run the script on two ranks; return their statuses and what they said."""
    store = TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    with script(_SCRIPT, 0, store.port, raising) as first, script(_SCRIPT, 1, store.port, raising) as second:
        ended = [each.result() for each in (first, second)]
    return [each.returncode for each in ended], [each.stderr for each in ended]


@pytest.mark.slow
def test_a_script_that_does_not_close_its_wrapper_ends_with_its_own_status() -> None:
    """Its last sums are under way: no thread of the runtime outlives the interpreter, which would abort."""
    statuses, errors = _run("never")
    assert statuses == [0, 0], errors


@pytest.mark.slow
@pytest.mark.parametrize("raising", ["before the step", "after the step"])
def test_a_script_that_raises_ends_with_its_own_status(raising: str) -> None:
    """The sums that it leaves under way end with its connections, before the interpreter does."""
    statuses, errors = _run(raising)
    assert statuses == [1, 1], errors
    assert f"ValueError: {raising}" in errors[1]
    assert "rank 1 has left the training (ValueError)" in errors[0]


_BESIDE_A_STOPPED_RANK = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from pace.errors import CommunicationFailed
from pace.runtime.torch import DistributedOptimizer

rank, port, other = (int(argument) for argument in sys.argv[1:4])
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
store = TCPStore("127.0.0.1", port, 2, rank == 0, wait_for_workers=False)
if rank == 0:
    print(store.port, flush=True)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
model = torch.nn.Linear(10, 10)
optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, timeout_s=3.0)

class Last:
    # Goes while the interpreter ends. Other threads run meanwhile, and the stopped rank's store goes.
    def __del__(self, kill=os.kill, sleep=time.sleep, victim=other):
        kill(victim, 9)
        sleep(1.0)

if rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
sys.modules["last"] = Last()
try:
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 10)).sum().backward()
        optimizer.step()
    optimizer.synchronize()
except CommunicationFailed as error:
    print(error, flush=True)
    optimizer.close()
"""


@pytest.mark.slow
def test_a_rank_whose_store_comes_back_to_it_as_it_ends_is_not_aborted() -> None:
    """Threads that wait for a stopped rank's store have ended before the interpreter does."""
    with (
        script(_BESIDE_A_STOPPED_RANK, 0, 0, 0) as stopped,
        script(_BESIDE_A_STOPPED_RANK, 1, stopped.line(), stopped.process.pid) as other,
    ):
        survivor = other.result()
    assert "rank 0 is gone: the store that it keeps does not answer" in survivor.stdout, survivor.stderr
    assert survivor.returncode == 0, survivor.stderr


_LOSE_RANK_1 = """
import os
import sys
import time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from pace.errors import CommunicationFailed
from pace.runtime.torch import DistributedOptimizer

rank, port, wraps = (int(argument) for argument in sys.argv[1:4])
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
store = TCPStore("127.0.0.1", port, 3, rank == 0, wait_for_workers=False)
if rank == 0:
    print(store.port, flush=True)
dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
model = torch.nn.Linear(10, 10)
if rank == 1 and not wraps:
    os.kill(os.getpid(), 9)
try:
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, mode="barrier")
    for step in range(3):
        if step == 2 and rank == 1:
            os.kill(os.getpid(), 9)
        if step == 2 and rank == 2:
            time.sleep(0.8)  # it notices when rank 0 has nearly found out what happened
        optimizer.zero_grad()
        model(torch.ones(1, 10)).sum().backward()
        optimizer.step()
except CommunicationFailed as error:
    print(error, flush=True)
    os._exit(3)  # nothing keeps the store a little longer
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wraps", "fault"),
    [(0, "rank 1 has not wrapped its optimizer"), (1, "rank 1 gives no sign of life")],
    ids=["before wrapping", "in training"],
)
def test_the_last_rank_does_not_blame_the_rank_that_keeps_the_store(wraps: int, fault: str) -> None:
    """Rank 0 ends because of rank 1, and with it the store; rank 2 notices later, and names rank 1, too."""
    with script(_LOSE_RANK_1, 0, 0, wraps) as first:
        port = first.line()
        with script(_LOSE_RANK_1, 1, port, wraps), script(_LOSE_RANK_1, 2, port, wraps) as last:
            for each in (first.result(), last.result()):
                assert fault in each.stdout, each.stdout + each.stderr
                assert "rank 0 is gone" not in each.stdout


_SAVES_LATE = """
import os, sys, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from pace.runtime.torch import AllReduce, DistributedOptimizer

def main():
    rank, port, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, 2), rank=rank, world_size=2)
    model = torch.nn.Sequential(*(torch.nn.Linear(50, 50) for _ in range(4)))
    optimizer = DistributedOptimizer(
        torch.optim.AdamW(model.parameters()), model, mode="overlap",
        communication=AllReduce(sharding="on"),
    )
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 50)).sum().backward()
        if step == 2 and rank == 0 and how == "goes on":
            break
        optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        if step == 1 and rank == 1 and how == "goes on":
            break
    if how == "goes on":
        if rank == 0:
            optimizer.step()
        return
    if rank == (how == "keeper ends"):
        time.sleep(3.0)  # the other rank has ended its loop, its function, or its script long since
        if how == "saver is killed":
            os.kill(os.getpid(), 9)
        state = optimizer.state_dict()["state"]
        print(len(state), all(each["exp_avg"].any() for each in state.values()), flush=True)
    if how == "destroys":
        dist.destroy_process_group()
    if how == "script":
        global kept
        kept = optimizer

main()
"""


def _run_late(how: str) -> tuple[list[int], list[str], str]:
    """Run the script on two ranks; return their statuses, their errors, and what they printed."""
    store = TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    with script(_SAVES_LATE, 0, store.port, how) as first, script(_SAVES_LATE, 1, store.port, how) as second:
        ended = [each.result() for each in (first, second)]
    return (
        [each.returncode for each in ended],
        [each.stderr for each in ended],
        "".join(each.stdout for each in ended),
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["function", "script", "destroys", "keeper ends"])
def test_a_rank_that_ends_first_still_gives_its_part_of_the_state(how: str) -> None:
    """Updates are sharded, and only one rank saves the optimizer after the last step; nobody calls close().

    The rank that ends first may be the one that keeps the store of all.
    """
    statuses, errors, said = _run_late(how)
    assert statuses == [0, 0], errors
    assert said.split() == ["8", "True"]


@pytest.mark.slow
def test_a_rank_that_ended_does_not_stay_for_one_that_is_killed() -> None:
    """Otherwise it would stay for its time-out, which is longer than this test may take."""
    statuses, errors, _ = _run_late("saver is killed")
    assert statuses == [-9, 0], errors


@pytest.mark.slow
def test_a_rank_that_ends_while_another_trains_on_is_named_at_once() -> None:
    """It does not stay for a checkpoint until its time-out, which is longer than this test may take."""
    statuses, errors, _ = _run_late("goes on")
    assert statuses == [1, 0], errors
    assert "rank 1 has left the training after its step 2" in errors[0]


_ENDS = """
import ctypes, gc, os, subprocess, sys, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from pace.runtime.optimizer.live_wrappers import live
from pace.runtime.torch import AllReduce, DistributedOptimizer

rank, port, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, 2), rank=rank, world_size=2)

class Trainer:
    def __init__(self):
        self.model = torch.nn.Sequential(*(torch.nn.Linear(20, 20) for _ in range(4)))
        self.optimizer = DistributedOptimizer(
            torch.optim.AdamW(self.model.parameters()), self.model, mode="overlap", timeout_s=1000.0,
            communication=AllReduce(sharding="on"),
        )
        self.itself = self if how == "cycles" else None

    def train(self):
        for step in range(2):
            self.optimizer.zero_grad()
            self.model(torch.ones(1, 20)).sum().backward()
            self.optimizer.step()

    def save(self):
        state = self.optimizer.state_dict()["state"]
        print(len(state), all(each["exp_avg"].any() for each in state.values()), flush=True)

trainers = [Trainer() for _ in range(8 if how == "several" else 2 if how == "steps differ" else 1)]
for trainer in trainers:
    trainer.train()
if rank == 0 and how == "steps differ":
    trainer.train()
if how == "cycles":
    for trial in range(3):
        trainer = trainers = None
        if rank == 1:
            gc.collect()
        dist.barrier()
        trainers = [trainer := Trainer()]
        trainer.train()
    if rank == 1:
        print("open", len(live), flush=True)
if rank == 1 and how in ("exits", "exits before a wrapper"):
    sys.exit(3)
if rank == 0 and how == "exits":
    dist.barrier()
if rank == 0 and how == "exits before a wrapper":
    Trainer()
if rank == 1 and how == "is interrupted":
    subprocess.Popen(["sh", "-c", f"sleep 4; kill -INT {os.getpid()}"])
if rank == 0 and how == "is interrupted":
    time.sleep(8.0)
    trainer.save()
if rank == 0 and how == "holds the interpreter":
    ctypes.PyDLL(None).sleep(5)  # without giving up its lock
    trainer.save()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "statuses", "said", "error"),
    [
        ("several", [0, 0], "", ""),
        ("cycles", [0, 0], "open 1", ""),
        ("exits", [1, 3], "", "Connection closed by peer"),
        ("exits before a wrapper", [1, 3], "", "rank 1 has not wrapped its optimizer"),
        ("steps differ", [1, 0], "", "rank 1 has left the training after its step 2"),
        ("is interrupted", [1, 0], "", "call close() on every rank if one saves the optimizer later"),
        ("holds the interpreter", [0, 0], "8 True", ""),
    ],
)
def test_no_rank_stays_without_need(how: str, statuses: list[int], said: str, error: str) -> None:
    """Updates are sharded. A rank that stayed would do so for its time-out, longer than a test may take."""
    store = TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    with script(_ENDS, 0, store.port, how) as first, script(_ENDS, 1, store.port, how) as second:
        ended = [each.result() for each in (first, second)]
    assert [each.returncode for each in ended] == statuses, [each.stderr for each in ended]
    assert "".join(each.stdout for each in ended).strip() == said
    assert error in ended[0].stderr


_CHECKED = """
import os, sys
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from pace.runtime.torch import DistributedOptimizer

def main():
    rank, port, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=TCPStore("127.0.0.1", port, 2), rank=rank, world_size=2)
    model = torch.nn.Linear(50, 50)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, mode="check")
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 50)).sum().backward()
        optimizer.step()
    if how == "script":
        global kept
        kept = optimizer

main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["function", "script"])
def test_what_a_check_has_shown_is_said_without_close(how: str) -> None:
    """Where the wrapper goes with its function, and where it goes with the process."""
    store = TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    with script(_CHECKED, 0, store.port, how) as first, script(_CHECKED, 1, store.port, how) as second:
        for ended in (first.result(), second.result()):
            assert ended.returncode == 0, ended.stderr
            assert "steps=3 result='no missed use of a pending parameter was found'" in ended.stderr
