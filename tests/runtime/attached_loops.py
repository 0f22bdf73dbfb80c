"""What loops under DDP and ``fully_shard`` share: a run of one, with and without PACE, and refusals."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from pace.runtime.options import Mode
from tests.runtime.loop_differences import differences
from tests.runtime.rank_pool import RankPool
from tests.runtime.training import backward, grouped


class AttachedJob(ABC):
    """One rank's run of a loop.

    Attributes
    ----------
    steps
        How many steps a loop takes, about.
    width
        How many numbers an input has.
    seen
        What the loop wants compared.
    """

    steps: int
    width: int

    def __init__(self, rank: int, *, attach: bool, mode: Mode = "overlap") -> None:
        self.rank = rank
        self.attach = attach
        self.seen: list[Any] = []
        self.handle: Any = None
        self.model: Any = None
        self._mode = mode

    @abstractmethod
    def wrapped(self, **options: Any) -> Any:
        """Make the model as the framework wraps it."""

    @abstractmethod
    def front_door(self) -> Callable[..., Any]:
        """Return the framework's ``attach``."""

    def begin(
        self, kind: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, **options: Any
    ) -> tuple[Any, Any]:
        """Make the model, as the framework wraps it with options, and its optimizer; attach PACE."""
        model = self.wrapped(**options)
        optimizer = kind(model.parameters(), lr=0.02)
        self.attached(model, optimizer)
        return model, optimizer

    def attached(self, model: Any, optimizer: Any, **options: Any) -> None:
        """Attach PACE, if this run is one with it."""
        if self.attach:
            attach = self.front_door()
            self.handle = attach(model, optimizer, mode=self._mode, timeout_s=240.0, **grouped(options))

    def batch(self, number: int) -> torch.Tensor:
        """Draw a batch of this rank."""
        random = torch.Generator().manual_seed(100 * number + self.rank)
        return torch.randn(4, self.width, generator=random)

    def backward(self, model: Any, number: int, factor: Any = 1.0, **named: Any) -> torch.Tensor:
        """Run forward and backward passes."""
        loss: torch.Tensor = model(self.batch(number), **named).float().pow(2).mean() * factor
        backward(loss)
        return loss

    def see(self, *values: Any) -> None:
        """Note values to compare."""
        self.seen += [copy.deepcopy(whole(value)) for value in values]

    def end(self) -> list[Any]:
        """All that is to be compared; closing must leave the weights as they were."""
        self.see(self.model.state_dict())
        if self.handle is not None:
            self.handle.close()
            after = whole(self.model.state_dict())
            assert all(torch.equal(after[name], value) for name, value in self.seen[-1].items())
        return self.seen


def whole(value: Any) -> Any:
    """Return what was sharded as a whole; of a gradient what every replica agrees on.

    Sharded tensors are read as a loop reads them. Their memory, read past anything that could make it
    current, must hold the same then.
    """
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [whole(each) for each in value]
    if not hasattr(value, "full_tensor"):
        return value
    shown = value.full_tensor()
    assert torch.equal(shown, in_memory(value))
    return shown


def in_memory(sharded: Any) -> torch.Tensor:
    """Return the whole of a sharded tensor from the memory of all shards, without a method of the tensor."""
    from torch.distributed.tensor import DTensor

    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        slot: Any = DTensor._local_tensor  # on the class, it is the descriptor of the attribute
        copied = slot.__get__(sharded).clone()
        spec = sharded._spec
        made = DTensor(copied, spec, requires_grad=False)  # type: ignore[no-untyped-call]  # in torch
    found: torch.Tensor = made.full_tensor()
    return found


def usual(job: AttachedJob) -> None:
    """A learning rate schedule from before PACE was attached, and one from afterwards."""
    model = job.wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    early = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    job.attached(model, optimizer)
    late = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(job.steps):
        optimizer.zero_grad()
        job.backward(model, step)
        optimizer.step()
        early.step()
        late.step()
        job.see(optimizer.param_groups[0]["lr"])


def compare(
    rank: int,
    job: type[AttachedJob],
    loops: Iterable[Callable[[Any], None]],
    rounded: Collection[Callable[[Any], None]],
    tried: Collection[Callable[[Any], None]],
) -> dict[str, list[str]]:
    """Run loops on this rank with and without PACE; return the differences of each.

    Results of `rounded` loops need not be equal to the bit. Loops of `tried` also run while ranks try modes.
    """
    found = {}
    for loop in loops:
        without = _finished(job(rank, attach=False), loop)
        near = 1e-6 if loop in rounded else 0.0
        modes: tuple[Mode, ...] = ("overlap", "auto") if loop in tried else ("overlap",)
        for mode in modes:
            with_pace = _finished(job(rank, attach=True, mode=mode), loop)
            found[f"{loop.__name__} {mode}"] = list(differences(with_pace, without, near))
    return found


def _finished(job: AttachedJob, loop: Callable[[Any], None]) -> list[Any]:
    torch.manual_seed(11)
    loop(job)
    return job.end()


Refusals = Sequence[tuple[Callable[[int], None], str]]
"""What is refused, and words that say why."""


def refused(rank: int, refusals: Refusals) -> list[tuple[str, str]]:
    """Try all; return what each raised."""
    found = []
    for refusal, _ in refusals:
        try:
            refusal(rank)
        except Exception as error:
            found.append((type(error).__name__, str(error)))
        else:
            found.append(("", "nothing was refused"))
    return found


def check_refused(pool: RankPool, refusals: Refusals) -> None:
    """Fail where a rank does not refuse, or says something else."""
    for each in pool.results(refused, refusals):
        for (refusal, words), (kind, message) in zip(refusals, each, strict=True):
            assert kind in ("InvalidUse", "InvalidOptions"), (refusal.__name__, kind, message)
            assert words in message, (refusal.__name__, message)
