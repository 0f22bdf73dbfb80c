"""What the operations of a program are in code, as users write it; and how a rank runs them.

``Trainer`` holds the users' code. Where plain training on one process differs from a rank's under the
runtime, a method is overridden: by ``RankTrainer`` here, by ``Reference`` in ``loop_reference``.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.runtime.loop_device import numbers, train_there
from tests.runtime.loops.loop_aliases import Aliases
from tests.runtime.loops.loop_models import LOOP_OPTIMIZERS, Pass, build_units, loss_of, through_units
from tests.runtime.loops.loop_program import Operation, Program
from tests.runtime.loops.loop_readings import Entry, plain, read_gradients
from tests.runtime.schedules import shuffled_schedule
from tests.runtime.training import backward, grouped, wrap

WRAPPINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


class Trainer(Aliases):
    """Runs the operations of a program.

    Attributes
    ----------
    entries
        What user code saw, in order.
    clock
        How many batches were drawn.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.model = build_units(program.kinds)
        self.call: Pass = self.model if program.entry == "model" else through_units(self.model)
        self.optimizer: Any = LOOP_OPTIMIZERS[program.optimizer](self.model)
        self.keep_first(self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
        self.parameters = list(self.model.parameters())
        self.clock = 0
        self.operation: Operation = ()
        self.kept: list[torch.Tensor | None] = []
        self.saved: Any = None

    def run(self, operations: Sequence[Operation]) -> None:
        """Run operations, one after another."""
        for operation in operations:
            self.operation = operation
            getattr(self, f"_{operation[0]}")(*operation[1:])

    def finish(self) -> None:
        """Look at everything once more."""
        self.operation = ("end",)
        self._weights("parameters")
        self._read(None, "norm")
        self._state()

    @abstractmethod
    def look(self, code: Callable[[], Any]) -> None:
        """Run code that looks at gradients and note what it says."""

    @abstractmethod
    def say(self, value: Any, *, same_bits: bool = False) -> None:
        """Note what user code sees that is the same on every rank."""

    def pass_back(self, style: str, path: Sequence[int], seed: int, factor: Any = 1.0) -> float:
        """Run forward and backward passes on a batch; return the loss."""
        extra = self.penalty() if style == "penalty" else 0.0
        loss = (self.late_loss_of if style == "late" else self.loss_of)(path, seed) + extra
        if style in ("two", "sum"):
            other = self.loss_of(path[::-1], seed + 500_000)
        if not loss.requires_grad:
            return float(loss.detach())
        if style == "retain":
            torch.autograd.backward(loss, retain_graph=True)
            backward(loss)
        elif style == "two":
            backward(loss)
            backward(other)
        elif style == "sum":
            backward(loss + other)
        elif style == "part":
            unit = self.model.units[path[0] % len(self.model.units)]
            wanted = [parameter for parameter in unit.parameters() if parameter.requires_grad]
            if wanted:
                torch.autograd.backward(loss, inputs=wanted)
        elif factor is self.scaler:
            backward(self.scaler.scale(loss))
        else:
            backward(loss * factor)
        return float(loss.detach())

    def loss_of(self, path: Sequence[int], seed: int) -> torch.Tensor:
        """The loss of a batch."""
        # A reentrant checkpoint computes gradients only where its input wants one.
        return loss_of(self.call, path, seed, wants_gradient="checkpointed" in self.program.kinds)

    def late_loss_of(self, path: Sequence[int], seed: int) -> torch.Tensor:
        """The loss of a batch that passes through a module made after wrapping first."""
        return loss_of(self.through_late_module, path, seed)

    def seed(self, rank: int, style: str) -> int:
        """The seed of a rank's batch."""
        return 1000 * self.clock + (0 if style == "same" else rank)

    def gradients(self) -> list[torch.Tensor]:
        """Gradients that are there, as most user code collects them."""
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def in_place(self, change: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        """Change every gradient."""

        def code() -> None:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    if parameter.grad is not None:
                        change(parameter.grad, parameter)

        self.look(code)

    # Forward passes and gradients.

    def _forward(self, path: Sequence[int]) -> None:
        with torch.no_grad():
            self.say(self.loss_of(path, 7))

    def _read(self, number: int | None, how: str) -> None:
        self.look(lambda: self._reading(number, how))

    def _reading(self, number: int | None, how: str) -> Any:
        if how == "none":
            return [parameter.grad is None for parameter in self.model.parameters()]
        if number is None:
            said = read_gradients(self.gradients(), how)
            return said, [parameter.grad for parameter in self.model.parameters()]
        gradient = self.parameters[number % len(self.parameters)].grad
        return None if gradient is None else (read_gradients([gradient], how), gradient)

    def _norm(self, limit: float) -> None:
        self.look(lambda: nn.utils.clip_grad_norm_(self.model.parameters(), limit))

    def _value(self, limit: float) -> None:
        def code() -> None:
            if self.gradients():  # torch refuses to clip nothing
                nn.utils.clip_grad_value_(self.model.parameters(), limit)

        self.look(code)

    def _scale(self, factor: float) -> None:
        self.in_place(lambda gradient, _: gradient.mul_(factor))

    def _noise(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        noise: dict[Any, torch.Tensor] = {p: numbers(p.shape, generator, p.dtype) for p in self.parameters}
        self.in_place(lambda gradient, parameter: gradient.add_(noise[parameter], alpha=0.01))

    def _decay(self, factor: float) -> None:
        self.in_place(lambda gradient, parameter: gradient.add_(parameter, alpha=factor))

    def _data(self, limit: float) -> None:
        self.in_place(lambda gradient, _: gradient.data.clamp_(-limit, limit))

    def _replace(self, number: int) -> None:
        parameter = self.parameters[number % len(self.parameters)]

        def code() -> None:
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clamp(-0.05, 0.05)

        self.look(code)

    def _keep(self) -> None:
        def code() -> list[float]:
            self.kept = [parameter.grad for parameter in self.model.parameters()]
            return [float(kept.norm()) for kept in self.kept if kept is not None]

        self.look(code)

    def _compare(self) -> None:
        def code() -> Any:
            for gradient in self.gradients():
                float(gradient.norm())
            return list(self.kept)

        self.look(code)

    def _unscale(self) -> None:
        self.look(lambda: self.scaler.unscale_(self.optimizer))

    # Parameters, hyper-parameters and checkpoints.

    def _freeze(self, unit: int) -> None:
        self._require(unit, False)

    def _unfreeze(self, unit: int) -> None:
        self._require(unit, True)

    def _require(self, unit: int, wanted: bool) -> None:
        # The first unit always trains: a loss scaler wants gradients on every rank.
        self.model.units[1 + unit % (len(self.model.units) - 1)].requires_grad_(wanted)

    def _rate(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= factor

    def _weights(self, way: str) -> None:
        if way == "groups":
            found = [p for group in self.optimizer.param_groups for p in group["params"]]
        elif way == "state":
            found = list(self.model.state_dict().values())
        elif way == "attribute":
            found = [
                getattr(module, name)
                for module in self.model.modules()
                for name, _ in module.named_parameters(recurse=False)
            ]
        elif way == "kept":
            found = list(self.parameters)
        elif way == "raw":
            found = [p for module in self.model.modules() for p in {**module._parameters}.values()]
        else:
            found = list(self.model.parameters())
        self.say(found, same_bits=True)

    def _clamp(self, limit: float, way: str) -> None:
        if way == "groups":
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.data.clamp_(-limit, limit)
            return
        with torch.no_grad():
            for parameter in self.parameters if way == "kept" else self.model.parameters():
                (parameter.data if way == "data" else parameter).clamp_(-limit, limit)

    def _state(self) -> None:
        state = copy.deepcopy(self.optimizer.state_dict())
        self.optimizer.load_state_dict(state)
        values = state["state"]
        self.say([values[n][key] for n in sorted(values) for key in sorted(values[n])], same_bits=True)

    def _save(self) -> None:
        self.saved = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def _restore(self) -> None:
        if self.saved is not None:
            self.model.load_state_dict(self.saved[0])
            self.optimizer.load_state_dict(copy.deepcopy(self.saved[1]))

    def after_step(self) -> None:
        """Read the weights, where the program is one that does."""
        if self.program.watched:
            self._weights("parameters")


class RankTrainer(Trainer):
    """One rank, under the runtime."""

    def __init__(self, program: Program, rank: int) -> None:
        super().__init__(program)
        self.rank = rank
        self.entries: list[Entry] = []
        self.wrapper = self.wrapped()
        if program.wrapping is None:
            self.optimizer = self.wrapper
        self.loss = 0.0

    def wrapped(self) -> Any:
        """Wrap the optimizer as the program says, or the model: then the loop goes on with the optimizer."""
        program, options = self.program, dict(self.program.options)
        if program.plan is not None:
            options["schedule"] = shuffled_schedule(
                self.model, program.size, program.plan, max_segment_bytes=200
            )
        options.setdefault("timeout_s", 60.0)
        if program.wrapping is None:
            return wrap("gloo", self.optimizer, self.model, **options)
        from pace.runtime.ddp import attach

        self.call = nn.parallel.DistributedDataParallel(self.model, **WRAPPINGS[program.wrapping])
        return attach(self.call, self.optimizer, **grouped(options))

    def look(self, code: Callable[[], Any]) -> None:
        """Run code that looks at gradients."""
        self.say(code())

    def say(self, value: Any, *, same_bits: bool = False) -> None:
        """Note what this rank sees."""
        self.entries.append(Entry(operation=self.operation, value=plain(value), same_bits=same_bits))

    def close(self) -> None:
        """Close the wrapper and look at the weights that it leaves."""
        self.wrapper.close()
        self.operation = ("close",)
        self._weights("state")

    def _compute(self, style: str, paths: Sequence[Sequence[int]]) -> None:
        self.clock += 1
        self.loss = 0.0
        if paths[self.rank]:
            self.loss = self.pass_back(style, paths[self.rank], self.seed(self.rank, style))
        self.say(self.loss)

    def _scaled(self, paths: Sequence[Sequence[int]], overflow: int | None) -> None:
        self.clock += 1
        self.scaler.scale(torch.ones(()))
        scale = self.scaler.get_scale()
        factor: Any = scale * float("inf") if overflow == self.rank else self.scaler
        self.say(self.pass_back("once", (0, *paths[self.rank]), self.seed(self.rank, "once"), factor))

    def _loss(self) -> None:
        mean = torch.tensor(self.loss, dtype=torch.float64)
        dist.all_reduce(mean)
        self.say(mean / self.program.size)

    def _log(self, number: int) -> None:
        self.say(self._reading(number, "norm") if self.rank == 0 else None)

    def _assign(self, number: int) -> None:
        self.clock += 1
        parameter = self.parameters[number % len(self.parameters)]
        parameter.grad = assigned(parameter, self.seed(self.rank, "assign"))

    def _drop(self, number: int) -> None:
        self.parameters[number % len(self.parameters)].grad = None

    def _zero(self, who: str | int, set_to_none: bool) -> None:
        if who == "optimizer":
            self.optimizer.zero_grad(set_to_none=set_to_none)
        elif who == "model":
            self.model.zero_grad(set_to_none=set_to_none)
        elif isinstance(who, int):
            self.model.units[who % len(self.model.units)].zero_grad(set_to_none=set_to_none)
        else:
            for parameter in self.model.parameters():
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.zero_()

    def _no_sync(self, operations: Sequence[Operation]) -> None:
        with self.wrapper.no_sync():
            self.run(operations)

    def _step(self) -> None:
        self.optimizer.step()
        self.after_step()

    def _closure(self, operations: Sequence[Operation]) -> None:
        def closure() -> torch.Tensor:
            self.run(operations)
            return torch.tensor(self.loss)

        self.optimizer.step(closure)
        self.after_step()

    def _scaler_step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.say(self.scaler.get_scale())
        self.after_step()

    def _synchronize(self) -> None:
        self.wrapper.synchronize()

    def _report(self) -> None:
        self.wrapper.report()


def assigned(parameter: nn.Parameter, seed: int) -> torch.Tensor:
    """A gradient that user code made by itself, different on every rank."""
    generator = torch.Generator().manual_seed(seed)
    made = numbers(parameter.shape, generator, parameter.dtype) / 10
    return torch.empty_like(parameter.detach()).copy_(made)  # laid out in memory as the parameter is


def run_program(rank: int, program: Program) -> list[Entry]:
    """Run a program on this rank."""
    train_there()
    trainer = RankTrainer(program, rank)
    trainer.run(program.operations)
    trainer.finish()
    trainer.close()
    return trainer.entries
