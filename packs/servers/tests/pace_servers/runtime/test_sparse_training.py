"""Sparse gradients over parameter servers: rows on the wire, weights of plain training."""

import os
import signal
from typing import Any

import pytest
import torch
from torch import nn

from pace.wire.frames import Frame
from pace_servers.runtime.link import ServerLink
from tests.pace_servers.runtime.server_processes import served
from tests.runtime.launch import run_ranks
from tests.runtime.logs import captured_events
from tests.runtime.models import weights
from tests.runtime.training import OPTIMIZERS, Weights, backward, difference, equal_bits, wrap

SIZE = 2
STEPS = 6
ROWS, WIDTH = 50_000, 16

# Backend, optimizer and options.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("servers", "sgd", {}),
    ("servers", "adam", {"deterministic": True, "mode": "overlap"}),
    ("servers", "adagrad", {"mode": "barrier", "max_grad_norm": 0.01}),
    ("mixed", "sgd", {"op": "sum"}),
]


class _Bags(nn.Module):
    """A table of which a step touches a few rows, and a layer behind it."""

    def __init__(self, *, rows: int = ROWS, width: int = WIDTH, sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, sparse=sparse, mode="sum")
        self.head = nn.Linear(width, 1)

    def forward(self, bags: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.table(bags).tanh()).square().sum()
        return found


def _model(**options: Any) -> _Bags:
    torch.manual_seed(2)
    return _Bags(**options).double()


def _bags(rank: int, step: int, *, rows: int = ROWS, number: int = 8) -> torch.Tensor | None:
    """Return a rank's share of a step; the last rank has none in every third."""
    if rank == SIZE - 1 and step % 3 == 2:
        return None
    return torch.randint(0, rows, (number, 5), generator=torch.Generator().manual_seed(10 * step + rank))


def _plain(optimizer: str, options: dict[str, Any]) -> Weights:
    model = _model(sparse=False)
    own = OPTIMIZERS[optimizer](list(model.parameters()))
    for step in range(STEPS):
        own.zero_grad()
        for rank in range(SIZE):
            bags = _bags(rank, step)
            if bags is not None:
                backward(model(bags) / (1 if options.get("op") == "sum" else SIZE))
        if "max_grad_norm" in options:
            torch.nn.utils.clip_grad_norm_(model.parameters(), options["max_grad_norm"])
        own.step()
    return weights(model)


def _train(rank: int, _size: int, cases: list[tuple[str, str, dict[str, Any]]]) -> list[Weights]:
    found = []
    for over, optimizer, options in cases:
        model = _model()
        own = OPTIMIZERS[optimizer](list(model.parameters()))
        wrapped = wrap("gloo", own, model, over=over, **options)
        for step in range(STEPS):
            wrapped.zero_grad()
            bags = _bags(rank, step)
            if bags is not None:
                backward(model(bags))
            wrapped.step()
        wrapped.synchronize()
        found.append(weights(model))
        wrapped.close()
    return found


def test_weights_of_sparse_gradients_equal_plain_training() -> None:
    """With momentum, Adam, clipping, sums, and steps in which a rank touches no row."""
    ranks = run_ranks(_train, SIZE, CASES)
    for number, (_, optimizer, options) in enumerate(CASES):
        trained = [each[number] for each in ranks]
        assert difference(trained[0], _plain(optimizer, options)) < 1e-12, CASES[number]
        assert equal_bits(*trained), CASES[number]


def _wire_bytes(wrapped: Any) -> tuple[int, int]:
    """Return what the kernel has sent to servers and had acknowledged, and received from them."""
    counts = [link._stream.carried_bytes for link in wrapped._transport._links]
    return sum(sent for sent, _ in counts), sum(received for _, received in counts)


_BIG_ROWS, _BIG_WIDTH, _BIG_BAGS = 160_000, 64, 400


def _count_bytes(rank: int, _size: int) -> tuple[int, int, int]:
    """Return what a step sends and receives with a table of 41 MB, and how many bytes its rows have."""
    model = _Bags(rows=_BIG_ROWS, width=_BIG_WIDTH)
    wrapped = wrap("gloo", torch.optim.SGD(model.parameters(), lr=0.1), model, over="servers", mode="overlap")
    before, touched = (0, 0), 0
    for step in range(3):
        if step == 1:
            wrapped.synchronize()
            before, touched = _wire_bytes(wrapped), 0
        wrapped.zero_grad()
        bags = _bags(0, 3 * step + rank, rows=_BIG_ROWS, number=_BIG_BAGS)
        assert bags is not None
        touched += len(set(bags.flatten().tolist())) * _BIG_WIDTH * 4
        backward(model(bags))
        wrapped.step()
    wrapped.synchronize()
    sent, received = _wire_bytes(wrapped)
    wrapped.close()
    return sent - before[0], received - before[1], touched


@pytest.mark.slow
def test_a_step_sends_little_more_than_the_rows_it_touches() -> None:
    """Of a table of 41 MB: what the kernel sends and receives is within 5 % of the rows' bytes."""
    ranks = run_ranks(_count_bytes, SIZE)
    both = sum(touched for _, _, touched in ranks)
    for sent, received, touched in ranks:
        assert touched < sent < 1.05 * touched
        assert received < 1.05 * both  # the rows of either rank


def _kill_after_rows(link: ServerLink, pid: int) -> None:
    """Kill a server when the next rows have come from it."""
    receive = link._receive_runs

    def last(frame: Frame) -> None:
        receive(frame)
        os.kill(pid, signal.SIGKILL)

    link._receive_runs = last  # type: ignore[method-assign]  # as if it came at this moment


def _train_with_loss(rank: int, _size: int, servers: list[str], pid: int) -> Weights:
    """Lose the first of two servers while its sums come back."""
    model = _model()
    own = OPTIMIZERS["sgd"](list(model.parameters()))
    wrapped = wrap("gloo", own, model, over="servers", servers=servers, timeout_s=40.0)
    for step in range(STEPS):
        if step == 2 and rank == 0:
            _kill_after_rows(wrapped._transport._links[0], pid)
        wrapped.zero_grad()
        bags = _bags(rank, step)
        if bags is not None:
            backward(model(bags))
        wrapped.step()
    wrapped.synchronize()
    assert wrapped._transport.num_servers == 1
    found = weights(model)
    wrapped.close()
    return found


@pytest.mark.slow
@pytest.mark.races_with_machine(reason="survivors must tell a lost server from a busy one within seconds")
def test_rows_outlive_the_loss_of_a_server() -> None:
    """A server dies while the rows of a round come back: the weights are those of plain training."""
    with served(2) as (servers, pids):
        ranks = run_ranks(_train_with_loss, SIZE, servers, pids[0])
    assert difference(ranks[0], _plain("sgd", {})) < 1e-12
    assert equal_bits(*ranks)


def _say_so(_rank: int, _size: int) -> list[list[str]]:
    """Return the reasons that are logged for several ways to train."""
    from pace_servers.runtime import asynchronous

    found = []
    for options in (
        {"over": "servers"},
        {"over": "servers", "compression": "bf16"},
        None,
        {},
    ):
        model = _Bags(rows=100)
        with captured_events() as events:
            own = torch.optim.SGD(model.parameters(), lr=0.1)
            wrapped: Any = (
                asynchronous(own, model) if options is None else wrap("gloo", own, model, **options)
            )
            for step in range(2):
                wrapped.zero_grad()
                backward(model(torch.full((1, 2), step)))
                wrapped.step()
            wrapped.close()
        found.append(
            [each["reason"] for each in events if each["event"] == "pace.sparse_gradients_sent_whole"]
        )
    return found


def test_the_log_says_once_where_sparse_gradients_are_sent_whole() -> None:
    """With its reason, on rank 0; nothing where rows are sent."""
    first, second = run_ranks(_say_so, SIZE)
    assert [len(reasons) for reasons in first] == [0, 1, 0, 1]
    assert "compression" in first[1][0]
    assert "communication=Mixed() of pace_servers.runtime" in first[3][0]
    assert second == [[], [], [], []]
