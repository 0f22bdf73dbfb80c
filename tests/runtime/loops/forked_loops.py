"""Loops that fork right after the step, and let the child evaluate the model."""

import datetime
import gc
import multiprocessing
import os
import pickle
import select
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from tests.runtime.loops.kept_references import small
from tests.runtime.loops.loop_run import Run

PATIENCE_S = 60.0


def in_child(work: Callable[[], Any]) -> Any:
    """Return what a forked child makes of `work`, or its error in words."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        try:
            try:
                said = work()
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writer, pickle.dumps(said))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as results:
        ready, _, _ = select.select([results], [], [], PATIENCE_S)
        if not ready:
            os.kill(process, 9)
        found = results.read()
    os.waitpid(process, 0)
    return pickle.loads(found) if found else "nothing came from the child"


def _evaluate(model: nn.Module) -> Any:
    with torch.no_grad():
        loss = model(torch.ones(2, 3, dtype=torch.float64)).sum().item()
    return [loss, [parameter.tolist() for parameter in model.parameters()]]


def evaluated(run: Run) -> None:
    """A child evaluates and reads the weights after each step."""
    model = run.build(small)
    optimizer, call = run.start(torch.optim.Adam(model.parameters(), lr=0.05), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        optimizer.step()
        said = in_child(lambda: _evaluate(model))
        assert not isinstance(said, str), f"step {step}: {said}"
        loss, values = said
        run.see(loss, [torch.tensor(each, dtype=torch.float64) for each in values])


def _put(model: nn.Module, queue: Any) -> None:
    queue.put(_evaluate(model)[0])


def evaluated_by_multiprocessing(run: Run) -> None:
    """The same with multiprocessing, now and then."""
    context = multiprocessing.get_context("fork")
    model = run.build(small)
    optimizer, call = run.start(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model)
    for step in range(run.steps):
        optimizer.zero_grad()
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        optimizer.step()
        if step % 4 == 1:
            queue = context.Queue()
            process = context.Process(target=_put, args=(model, queue))
            process.start()
            run.see(queue.get(timeout=PATIENCE_S))
            process.join()
            assert process.exitcode == 0


def trained_on(run: Run) -> None:
    """A child trains its copy of the model with a torch optimizer of its own."""
    model = run.build(small)
    optimizer, call = run.start(torch.optim.SGD(model.parameters(), lr=0.05), model)

    def train() -> list[Any]:
        own = torch.optim.SGD(model.parameters(), lr=0.1)
        own.zero_grad()
        model(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
        own.step()
        return [parameter.tolist() for parameter in model.parameters()]

    for step in range(run.steps):
        optimizer.zero_grad()
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        optimizer.step()
        if step % 4 == 1:
            values = in_child(train)
            assert not isinstance(values, str), values
            run.see([torch.tensor(each, dtype=torch.float64) for each in values])


def dropped_before(_rank: int) -> Any:
    """Return what a child says after a collection; its parent has dropped a cycle with a process group."""

    class Cycle:
        pass

    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    options._devices = [kind.create_device(interface="lo")]
    options._timeout = datetime.timedelta(seconds=PATIENCE_S)
    cycle: Any = Cycle()
    cycle.itself, cycle.group = cycle, kind(HashStore(), 0, 1, options)
    gc.disable()
    try:
        del cycle
        return in_child(lambda: f"collected {gc.collect() >= 0}")
    finally:
        gc.enable()


LOOPS = (evaluated, evaluated_by_multiprocessing, trained_on)
