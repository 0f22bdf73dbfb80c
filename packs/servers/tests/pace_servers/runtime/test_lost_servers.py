"""Servers of their own that die or stop while ranks train with them."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import pace_servers.runtime.push_pull as push_pull
from pace.wire.frames import Frame, FrameKind
from pace_servers.runtime import ParameterServers, asynchronous
from pace_servers.runtime.link import ServerLink
from pace_servers.runtime.push_pull import PushPullTransport
from tests.pace_servers.runtime.server_processes import served
from tests.pace_servers.runtime.test_asynchronous_training import STEPS, train_plainly_with_sgd
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build, weights
from tests.runtime.training import (
    OPTIMIZERS,
    Weights,
    backward,
    difference,
    equal_bits,
    meet,
    trainable,
    wrap,
)

pytestmark = pytest.mark.races_with_machine(
    reason="survivors must tell a lost server from a busy one within seconds"
)

SIZE = 3
TIMEOUT_S, SOON_S = 40.0, 20.0
# How long ranks wait for a server that does not come back, and for one that is there.
RETURN_S, CUT_RETURN_S = 1.5, 5.0


def _leftover_threads(before: set[int | None]) -> list[str]:
    deadline = time.monotonic() + 20
    left: list[str] = ["unknown"]
    while left and time.monotonic() < deadline:
        left = [thread.name for thread in threading.enumerate() if thread.ident not in before]
        time.sleep(0.05)
    return left


class _Net(nn.Module):
    """Large enough for segments of many chunks on both of two servers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 900), nn.Tanh(), nn.Linear(900, 900), nn.Linear(900, 8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(inputs).square().mean()
        return found


def _net() -> _Net:
    torch.manual_seed(3)
    return _Net().double()


def _inputs(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(50 + rank)
    return [torch.randn(4, 32, generator=generator, dtype=torch.float64) for _ in range(STEPS)]


def _plain_weights() -> Weights:
    model = _net()
    optimizer = OPTIMIZERS["sgd"](trainable(model))
    for shares in zip(*(_inputs(rank) for rank in range(SIZE)), strict=True):
        optimizer.zero_grad()
        for share in shares:
            backward(model(share) / SIZE)
        optimizer.step()
    return weights(model)


class _Trial:
    """A rank of a job over two servers that does something to them while it trains."""

    def __init__(self, servers: list[str], pid: int, ahead: Path, **options: Any) -> None:
        self.threads = {thread.ident for thread in threading.enumerate()}
        self.model = _net()
        self.pid = pid
        self.ahead = ahead
        self.optimizer = wrap(
            "gloo",
            OPTIMIZERS["sgd"](trainable(self.model)),
            self.model,
            over="servers",
            servers=servers,
            **{"timeout_s": TIMEOUT_S} | options,
        )

    @property
    def link(self) -> ServerLink:
        """That to the first server."""
        found: ServerLink = self.optimizer._transport._links[0]
        return found

    def kill_after(self, frames: int) -> None:
        """Kill the first server when so many of the next frames have come from it."""
        link, receive = self.link, self.link._receive

        def counting(frame: Frame) -> None:
            nonlocal frames
            receive(frame)
            frames -= 1
            if frames == 0:
                os.kill(self.pid, signal.SIGKILL)

        link._receive = counting  # type: ignore[method-assign]  # as if it came at this moment

    def cut_once_others_are_ahead(self) -> None:
        """Break the first connection before anything of a round's sums is read, all others having them."""
        self.optimizer.synchronize()  # of the round before, this rank lacks nothing
        stream, read = self.link._stream, self.link._stream.read

        def cut() -> Frame:
            frame = read()
            if frame.kind is not FrameKind.PULL:
                return frame
            while not self.ahead.exists():
                time.sleep(0.01)
            raise EOFError("cut")

        stream.read = cut  # type: ignore[method-assign]  # as if it came at this moment

    def train(self, rank: int, at: dict[int, Callable[[], None]]) -> tuple[Weights, int, list[str]]:
        """Train; before the steps in `at`, do something."""
        for step, share in enumerate(_inputs(rank)):
            at.get(step, lambda: None)()
            self.optimizer.zero_grad()
            backward(self.model(share))
            self.optimizer.step()
            if step == 2 and rank == 0:
                self.optimizer.synchronize()
                self.ahead.touch()
        self.optimizer.synchronize()
        found = weights(self.model), self.optimizer._transport.num_servers
        self.optimizer.close()
        return *found, _leftover_threads(self.threads)


# What happens to the first of two servers, or to a connection to it: the rank, the step and the deed.
DEEDS: dict[str, Callable[[_Trial], tuple[int, int, Callable[[], None]]]] = {
    "killed before the push": lambda t: (0, 2, lambda: os.kill(t.pid, signal.SIGKILL)),
    "killed in the pull": lambda t: (1, 2, lambda: t.kill_after(5)),
    "stopped": lambda t: (2, 1, lambda: os.kill(t.pid, signal.SIGSTOP)),
    "cut": lambda t: (1, 2, lambda: t.link._stream.shutdown()),
    "cut, a round behind": lambda t: (2, 2, t.cut_once_others_are_ahead),
}


def _synchronous(
    rank: int, servers: list[str], pid: int, folder: str, deed: str
) -> tuple[Weights, int, list[str]]:
    options: dict[str, Any] = {
        "killed in the pull": {"deterministic": True},
        "stopped": {"timeout_s": SOON_S},  # a quarter of it is waited out
    }
    trial = _Trial(servers, pid, Path(folder, f"{deed}.ahead"), **options.get(deed, {}))
    who, step, act = DEEDS[deed](trial)
    return trial.train(rank, {step: act} if rank == who else {})


def _without_any(rank: int, server: str, pid: int, folder: str) -> tuple[str, list[str]]:
    """Lose the only server."""
    trial = _Trial([server], pid, Path(folder, "ahead"))
    message = ""
    try:
        trial.train(rank, {2: lambda: os.kill(pid, signal.SIGKILL)} if rank == 0 else {})
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    trial.optimizer.close()
    return message, _leftover_threads(trial.threads)


def _without_waiting(
    rank: int,
    servers: list[str],
    pid: int,
    staleness: int | None,
    finished: Path | None = None,
    link_type: type[ServerLink] = ServerLink,
) -> tuple[Weights, int, list[str]]:
    """Lose a server in the middle, or when others have `finished`, and go on with the other one."""
    PushPullTransport.link_type = link_type
    before = {thread.ident for thread in threading.enumerate()}
    model = build("conv", double=True)
    inner = torch.optim.SGD(trainable(model), lr=0.05)
    optimizer = asynchronous(
        inner,
        model,
        staleness=staleness,
        communication=ParameterServers(servers=servers),
        timeout_s=TIMEOUT_S,
    )
    for step, batch in enumerate(batches("conv", STEPS, rank, double=True)):
        optimizer.zero_grad()
        backward(model(*batch))
        if rank == 1 and step == (2 if finished is None else STEPS - 1):
            while finished is not None and not finished.exists():
                time.sleep(0.01)
            time.sleep(0.0 if finished is None else 0.5)  # it is in synchronize() soon after it says so
            os.kill(pid, signal.SIGKILL)
        optimizer.step()
    if finished is not None and rank == 2:
        finished.touch()
    optimizer.synchronize()
    found = weights(model), optimizer._transport.num_servers
    optimizer.close()
    return *found, _leftover_threads(before)


class _LastToKnow(ServerLink):
    """Notices the loss of its server only after another server has said it."""

    def _lost(self, error: Exception) -> None:
        while not self._over:
            time.sleep(0.01)
        super()._lost(error)


def _live(rank: int, _size: int, servers: list[str], pids: list[int], folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    meet("gloo")
    # The last one survives them all; the others do one by one what the jobs with them are about.
    victims, survivor = list(zip(servers, pids, strict=True)), servers[-1]
    for deed in DEEDS:
        server, pid = victims[0] if "cut" in deed else victims.pop(0)
        push_pull._RETURN_S = CUT_RETURN_S if "cut" in deed else RETURN_S
        found[deed] = _synchronous(rank, [server, survivor], pid, folder, deed)
    (server, pid), (other, other_pid), (late, late_pid), (told, told_pid), (last, last_pid), _ = victims
    push_pull._RETURN_S = RETURN_S
    found["bulk"] = _without_waiting(rank, [server, survivor], pid, 0)
    found["async"] = _without_waiting(rank, [other, survivor], other_pid, None)
    found["finished"] = _without_waiting(rank, [late, survivor], late_pid, None, Path(folder, "finished"))
    found["told by others"] = _without_waiting(
        rank, [told, survivor], told_pid, None, Path(folder, "told"), _LastToKnow if rank == 1 else ServerLink
    )
    PushPullTransport.link_type = ServerLink
    found["without any"] = _without_any(rank, last, last_pid, folder)
    return found


@pytest.mark.slow
def test_training_goes_on_without_lost_servers(tmp_path: Path) -> None:
    """With the weights of plain training, wherever a server or a connection was lost in a round.

    Synchronous jobs and those with a staleness of 0: as if nothing had happened. Without any server left, an
    error that names the one that was lost.
    """
    with served(9) as (servers, pids):
        ranks = run_ranks(_live, SIZE, servers, pids, str(tmp_path), timeout_s=280)
    synchronous, expected = _plain_weights(), train_plainly_with_sgd()
    for found in ranks:
        for deed in DEEDS:
            trained, num_servers, left = found[deed]
            assert left == [], deed
            assert num_servers == (2 if "cut" in deed else 1), deed
            assert equal_bits(trained, ranks[0][deed][0]), deed
            assert difference(trained, synchronous) < 1e-12, deed
        message, left = found["without any"]
        assert message.startswith("CommunicationFailed"), message
        assert servers[-2] in message
        assert left == []
        for how in ("bulk", "async", "finished", "told by others"):
            trained, num_servers, left = found[how]
            assert num_servers == 1
            assert left == []
            assert equal_bits(trained, ranks[0][how][0])
        assert difference(found["bulk"][0], expected) < 1e-12
        assert difference(found["async"][0], expected) < 1.0
