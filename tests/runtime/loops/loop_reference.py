"""Plain synchronous training of a program: one process, one model, every rank's contributions beside it.

Written from what the runtime promises, and from nothing of the runtime. ``parameter.grad`` is the reduced
gradient, the same for all ranks; what a rank computed since the last reduction is its contribution. User
code that looks at gradients, and ``step()``, reduce: the average (or sum) of the contributions is added to
the reduced gradient of every parameter that any rank has a contribution for.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.runtime.loop_device import train_there
from tests.runtime.loops.loop_program import Operation, Program
from tests.runtime.loops.loop_readings import UNSEEN, Entry, Unseen, plain
from tests.runtime.loops.loop_trainer import Trainer, assigned
from tests.runtime.rank_pool import Failed

Contribution = dict[nn.Parameter, torch.Tensor]

# The relative difference of sums in another order, and the largest that rounding can have grown to in a
# program that still says something.
_NEAR, _LEAST_CERTAIN = 1e-10, 1e-6


class Reference(Trainer):
    """All ranks of a program at once.

    Parameters
    ----------
    error
        The relative error of every reduction.

    Attributes
    ----------
    contributions
        Of each rank, since the last reduction.
    stale
        Of each rank, whether it cannot know the reduced gradients: others had backward passes, and it did
        not. What it sees in them is not compared; what becomes of the weights is.
    """

    def __init__(self, program: Program, *, error: float = 0.0) -> None:
        super().__init__(program)
        self.error = error
        self.ranks = range(program.size)
        self.divisor = 1 if program.options.get("op") == "sum" else program.size
        self.contributions: list[Contribution] = [{} for _ in self.ranks]
        self.stale = [False for _ in self.ranks]
        self.kept_stale = list(self.stale)
        self.entries: list[list[Entry]] = [[] for _ in self.ranks]
        self.local = False
        self.losses = [0.0 for _ in self.ranks]

    def say(self, value: Any, *, same_bits: bool = False) -> None:
        """Note what every rank sees."""
        self._say_each([value for _ in self.ranks], same_bits=same_bits)

    def _say_each(self, values: Sequence[Any], *, same_bits: bool = False) -> None:
        for rank, value in zip(self.ranks, values, strict=True):
            entry = Entry(operation=self.operation, value=plain(value), same_bits=same_bits)
            self.entries[rank].append(entry)

    def look(self, code: Callable[[], Any]) -> None:
        """Run code that looks at gradients: reduced ones, or in no_sync each rank's own."""
        if self.local:
            said = []
            for rank in self.ranks:
                with self._own_gradients(rank):
                    said.append(plain(code()))
            self._say_each(said)
            return
        self.reduce()
        value = plain(code())
        self._say_each([UNSEEN if stale else value for stale in self.stale])

    @contextmanager
    def _own_gradients(self, rank: int) -> Iterator[None]:
        reduced = {parameter: parameter.grad for parameter in self.parameters}
        own = self.contributions[rank]
        for parameter in self.parameters:
            before, part = reduced[parameter], own.get(parameter)
            parameter.grad = part if before is None or part is None else before + part
            if part is None:
                parameter.grad = before
        yield
        for parameter in self.parameters:
            if reduced[parameter] is None and parameter.grad is not None:
                own[parameter] = parameter.grad
            parameter.grad = reduced[parameter]

    def reduce(self) -> None:
        """Add the mean of what ranks have computed since the last time."""
        if not any(self.contributions):
            return
        self._add_means(self.parameters)
        self.stale = [not own for own in self.contributions]
        self.contributions = [{} for _ in self.ranks]

    def _add_means(self, parameters: Sequence[nn.Parameter]) -> None:
        with torch.no_grad():
            for parameter in parameters:
                parts = [own[parameter] for own in self.contributions if parameter in own]
                if not parts:
                    continue
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.add_(torch.stack(parts).sum(0) / self.divisor * (1 + self.error))

    def _contribute(self, rank: int, code: Callable[[], float]) -> float:
        """Run a rank's backward passes and add up what they leave."""
        reduced = [parameter.grad for parameter in self.parameters]
        own = self.contributions[rank]
        for parameter in self.parameters:
            parameter.grad = own.get(parameter)
        loss = code()
        for parameter, before in zip(self.parameters, reduced, strict=True):
            if parameter.grad is not None:
                own[parameter] = parameter.grad
            parameter.grad = before
        return loss

    def _compute(self, style: str, paths: Sequence[Sequence[int]]) -> None:
        self.clock += 1
        self.losses = [
            self._contribute(rank, lambda r=rank: self.pass_back(style, paths[r], self.seed(r, style)))  # type: ignore[misc]
            if paths[rank]
            else 0.0
            for rank in self.ranks
        ]
        self._say_each(self.losses)

    def _scaled(self, paths: Sequence[Sequence[int]], overflow: int | None) -> None:
        self.clock += 1
        self.scaler.scale(torch.ones(()))
        scale = self.scaler.get_scale()
        losses = []
        for rank in self.ranks:
            factor: Any = scale * float("inf") if overflow == rank else self.scaler
            path, seed = (0, *paths[rank]), self.seed(rank, "once")
            losses.append(
                self._contribute(rank, lambda p=path, s=seed, f=factor: self.pass_back("once", p, s, f))  # type: ignore[misc]
            )
        self._say_each(losses)

    def _loss(self) -> None:
        self.say(np.mean(self.losses))

    def _log(self, number: int) -> None:
        self.reduce()
        value = UNSEEN if self.stale[0] else self._reading(number, "norm")
        self._say_each([value if rank == 0 else None for rank in self.ranks])

    def _assign(self, number: int) -> None:
        self.clock += 1
        parameter = self.parameters[number % len(self.parameters)]
        parameter.grad = None
        for rank in self.ranks:
            self.contributions[rank][parameter] = assigned(parameter, self.seed(rank, "assign"))

    def put_gradient(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        """Put a tensor in the place of what all ranks have."""
        for own in self.contributions:
            own.pop(parameter, None)
        parameter.grad = gradient

    def _drop(self, number: int) -> None:
        self._forget([self.parameters[number % len(self.parameters)]], set_to_none=True)

    def _zero(self, who: str | int, set_to_none: bool) -> None:
        some = isinstance(who, int)
        module = self.model.units[who % len(self.model.units)] if isinstance(who, int) else self.model
        self._forget(list(module.parameters()), set_to_none=set_to_none)
        if set_to_none and not some:
            self.stale = [False for _ in self.ranks]

    def _forget(self, parameters: Sequence[nn.Parameter], *, set_to_none: bool) -> None:
        """Drop gradients and contributions, or make zeros of those that are there on any rank."""
        if self.kept and not set_to_none:
            self.kept_stale = [True for _ in self.ranks]  # whether these follow is not promised
        if self.flat is not None:  # there they are complete since the backward pass
            self._add_means([parameter for parameter in parameters if parameter.grad is not None])
        for parameter in parameters:
            holders = [parameter in own for own in self.contributions]
            for own in self.contributions:
                own.pop(parameter, None)
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()
            elif any(holders):
                parameter.grad = torch.zeros_like(parameter)
                # A rank that had none there has not been told.
                self.stale = [stale or not held for stale, held in zip(self.stale, holders, strict=True)]

    def _keep(self) -> None:
        super()._keep()
        self.kept_stale = list(self.stale)

    def _compare(self) -> None:
        super()._compare()
        for rank in self.ranks:
            if self.kept_stale[rank]:
                self.entries[rank][-1] = Entry(operation=self.operation, value=UNSEEN)

    def _kept_read(self) -> None:
        super()._kept_read()
        for rank in self.ranks:
            if self.kept_stale[rank]:
                self.entries[rank][-1] = Entry(operation=self.operation, value=UNSEEN)

    def in_child(self, work: Callable[[], Any]) -> Any:
        """Run the code here: it changes nothing."""
        return work()

    def _no_sync(self, operations: Sequence[Operation]) -> None:
        self.local = True
        self.run(operations)
        self.local = False

    def _step(self) -> None:
        self.reduce()
        self.optimizer.step()
        self._agree()
        self.after_step()

    def _agree(self) -> None:
        """A step tells every rank the reduced gradients."""
        self.stale = [False for _ in self.ranks]

    def _closure(self, operations: Sequence[Operation]) -> None:
        def closure() -> float:
            self.run(operations)
            self.reduce()
            return 0.0

        self.optimizer.step(closure)
        self._agree()
        self.after_step()

    def _scaler_step(self) -> None:
        self.reduce()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._agree()
        self.say(self.scaler.get_scale())
        self.after_step()

    def _synchronize(self) -> None:
        pass

    def _report(self) -> None:
        pass


def expected(program: Program, *, error: float = 0.0) -> list[list[Entry]]:
    """What every rank of a program must see; see ``Reference``."""
    train_there()
    reference = Reference(program, error=error)
    reference.run(program.operations)
    reference.finish()
    reference.operation = ("close",)
    reference._weights("state")
    return reference.entries


def differences(
    found: list[list[Entry]], wanted: list[list[Entry]], *, near: Sequence[float] | None = None
) -> list[str]:
    """Say where ranks saw something else than plain training, or than one another.

    Parameters
    ----------
    near
        The relative difference that is allowed at each entry; by default 1e-10.
    """
    said = []
    for rank, (seen, plainly) in enumerate(zip(found, wanted, strict=True)):
        for at, (left, right) in enumerate(zip(seen, plainly, strict=True)):
            said_here = first_difference(left.value, right.value, _NEAR if near is None else near[at])
            if said_here:
                said.append(f"entry {at} {left.operation}, rank {rank}: {said_here}")
            elif left.same_bits and not _same_bits(left.value, found[0][at].value):
                said.append(f"entry {at} {left.operation}: ranks 0 and {rank} differ in their last bits")
    return said


def unexplained(found: list[list[Entry]], program: Program) -> list[str]:
    """Say where ranks saw something that is neither plain training's nor explained by rounding.

    Long programs at high rates multiply rounding. How much until an entry, reductions that are wrong in their
    last bits show.
    """
    wanted = expected(program)
    said = differences(found, wanted)
    if not said:
        return []
    allowed = [_NEAR] * len(wanted[0])
    for error in (4e-16, -4e-16):
        near = _NEAR / 10
        for at, entries in enumerate(zip(*expected(program, error=error), *wanted, strict=True)):
            pairs = list(zip(entries[: program.size], entries[program.size :], strict=True))
            while near < _LEAST_CERTAIN and any(first_difference(a.value, b.value, near) for a, b in pairs):
                near *= 10
            allowed[at] = max(allowed[at], 10 * near)
    return differences(found, wanted, near=allowed)


def check_against_plain_training(found: list[Any], program: Program) -> None:
    """Compare all that a program saw on every rank with plain training."""
    reasons = [f"rank {rank}: {each.reason}" for rank, each in enumerate(found) if isinstance(each, Failed)]
    assert not reasons, "\n".join([*reasons, str(program)])
    said = unexplained(found, program)
    assert not said, "\n".join([*said[:3], f"({len(said)} differences)", str(program)])


def first_difference(left: Any, right: Any, near: float) -> str:
    """Describe the first difference; nothing when there is none."""
    if isinstance(right, Unseen):
        return ""
    if left is None or right is None or isinstance(left, list) != isinstance(right, list):
        return "" if left is None and right is None else f"{_short(left)} instead of {_short(right)}"
    if isinstance(right, list):
        if len(left) != len(right):
            return f"{len(left)} values instead of {len(right)}"
        each = (first_difference(a, b, near) for a, b in zip(left, right, strict=True))
        return next((f"[{at}] {said}" for at, said in enumerate(each) if said), "")
    a, b = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if a.shape != b.shape:
        return f"shape {a.shape} instead of {b.shape}"
    finite = np.isfinite(b)
    size = max(float(np.abs(b[finite]).max(initial=0.0)), 1e-6)
    same = np.array_equal(finite, np.isfinite(a)) and (np.abs(a[finite] - b[finite]) <= near * size).all()
    return "" if same else f"{_short(left)} instead of {_short(right)}"


def _same_bits(left: Any, right: Any) -> bool:
    if isinstance(left, list):
        return len(left) == len(right) and all(_same_bits(a, b) for a, b in zip(left, right, strict=True))
    return np.asarray(left).tobytes() == np.asarray(right).tobytes()


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) < 90 else text[:90] + " ..."
