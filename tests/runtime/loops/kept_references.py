"""Loops that use parameters through references of their own, which the model's gates do not see."""

import copy
import io
import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from tests.runtime.loops.loop_run import Run


def small() -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def train(
    run: Run,
    *,
    keep: Callable[[nn.Module], Any] = lambda model: list(model.parameters()),
    after: Callable[[int, Any], Any] | None = None,
    loss: Callable[[Any], torch.Tensor] | None = None,
    make: Callable[[], nn.Module] = small,
) -> None:
    """Train, with references kept from before the optimizer is wrapped.

    Parameters
    ----------
    after
        Is given the step's number and what was kept, right after ``step()``; what it returns is compared.
    loss
        Makes a part of the loss of what was kept, before the model is called.
    """
    model = run.build(make)
    kept = keep(model)
    optimizer, call = run.start(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1), model
    )
    for step in range(run.steps):
        optimizer.zero_grad()
        more = loss(kept) if loss is not None else 0.0
        (call(run.batch(step, 2, 3)).pow(2).mean() + more).backward()
        run.average(model)
        optimizer.step()
        if after is not None:
            run.see(after(step, kept))


def penalty(run: Run) -> None:
    """A penalty for the distance from where training began, computed before the model is called."""
    first: list[torch.Tensor] = []

    def loss(kept: Sequence[torch.Tensor]) -> torch.Tensor:
        if not first:
            first.extend(parameter.detach().clone() for parameter in kept)
        return torch.stack([(p - q).pow(2).sum() for p, q in zip(kept, first, strict=True)]).sum()

    train(run, loss=loss)


def norms(run: Run) -> None:
    """Penalties for which autograd saves the parameter itself."""
    train(run, loss=lambda kept: torch.stack([p.norm() + p.abs().sum() for p in kept]).sum() * 0.1)


def moving_average(run: Run) -> None:
    """A moving average over a kept list, right after the step."""
    averages: list[torch.Tensor] = []

    def after(_step: int, kept: Sequence[torch.Tensor]) -> Any:
        if not averages:
            averages.extend(parameter.detach().clone() for parameter in kept)
        with torch.no_grad():
            torch._foreach_lerp_(averages, list(kept), 0.1)
        return averages

    train(run, after=after)


def clamped(run: Run) -> None:
    """Weights clamped through a kept list, as WGAN does."""

    def after(_step: int, kept: Sequence[torch.Tensor]) -> Any:
        with torch.no_grad():
            for parameter in kept:
                parameter.clamp_(-0.3, 0.3)

    train(run, after=after)


def state_dict_alias(run: Run) -> None:
    """A ``state_dict()`` kept from before, whose values are the parameters' memory."""
    train(run, keep=lambda model: model.state_dict(), after=lambda _step, kept: list(kept.values()))


def aliases(run: Run) -> None:
    """``p.data``, a view and a numpy array, kept and read after the step."""
    train(
        run,
        keep=lambda model: [
            alias
            for p in model.parameters()
            for alias in (p.data, p.detach().view(-1), torch.from_numpy(p.detach().numpy()))
        ],
        after=lambda _step, kept: list(kept),
    )


def aliases_written(run: Run) -> None:
    """Weights clamped through ``p.data`` kept from before."""

    def after(_step: int, kept: Sequence[torch.Tensor]) -> Any:
        for alias in kept:
            alias.clamp_(-0.3, 0.3)

    train(run, keep=lambda model: [p.data for p in model.parameters()], after=after)


def late_aliases(run: Run) -> None:
    """Aliases taken in the middle of training, and read in every later step."""
    kept_later: list[torch.Tensor] = []

    def after(step: int, kept: Sequence[torch.Tensor]) -> Any:
        if step == 2:
            kept_later.extend(p.detach() for p in kept)
        return list(kept_later)

    train(run, after=after)


def read_in_thread(run: Run) -> None:
    """Another thread reads kept parameters after the step."""

    def after(_step: int, kept: Sequence[torch.Tensor]) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(p.detach().clone() for p in kept))
        thread.start()
        thread.join()
        return found

    train(run, after=after)


class _Square(torch.autograd.Function):
    """The sum of squares."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        """Compute."""
        context.save_for_backward(value)
        return value.pow(2).sum()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Differentiate."""
        result: torch.Tensor = 2 * context.saved_tensors[0] * gradients[0]
        return result


_square: Callable[[torch.Tensor], torch.Tensor] = _Square.apply


def autograd_function(run: Run) -> None:
    """A kept parameter is given to an autograd function of the loop's own."""

    def loss(kept: Sequence[torch.Tensor]) -> torch.Tensor:
        squares: list[torch.Tensor] = [_square(p) for p in kept]
        return torch.stack(squares).sum()

    train(run, loss=loss)


def constructed(run: Run) -> None:
    """Kept parameters are given to functions of torch that ignore ``__torch_function__``."""
    make = torch.tensor

    def after(step: int, kept: Sequence[torch.Tensor]) -> Any:
        ways: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
            make,
            torch.zeros(1).new_tensor,
            torch.func.grad(lambda p: (p * p).sum()),
            lambda p: torch.asarray(p, copy=True, requires_grad=False),
            lambda p: p.as_subclass(torch.Tensor).clone(),
        )
        return [ways[step % len(ways)](parameter) for parameter in kept]

    train(run, after=after)


def copied(run: Run) -> None:
    """Kept parameters are copied, pickled and saved after the step."""

    def after(_step: int, kept: Sequence[torch.Tensor]) -> Any:
        file = io.BytesIO()
        torch.save(kept[0], file)
        file.seek(0)
        return [
            copy.deepcopy(kept[3]),
            pickle.loads(pickle.dumps(kept[2])),
            torch.load(file),
            copy.copy(kept[1]),
        ]

    train(run, after=after)


def function_transforms(run: Run) -> None:
    """Gradients per sample, of the model and of a functional call of kept parameters."""

    def after(step: int, kept: tuple[nn.Module, dict[str, torch.Tensor]]) -> Any:
        model, named = kept
        inputs = run.batch(step + 100, 5, 3)
        if step % 3 == 0:
            per_sample = torch.func.vmap(torch.func.grad(lambda x: model(x).pow(2).sum()))(inputs)
            return [per_sample]
        if step % 3 == 1:
            output: torch.Tensor = torch.func.functional_call(model, named, (inputs,))
            return [output]

        def of_parameters(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            value: torch.Tensor = torch.func.functional_call(model, parameters, (x,)).pow(2).sum()
            return value

        found = torch.func.vmap(torch.func.grad(of_parameters), in_dims=(None, 0))(named, inputs)
        return list(found.values())

    train(run, keep=lambda model: (model, dict(model.named_parameters())), after=after)


def tied_after_wrapping(run: Run) -> None:
    """A module made after wrapping shares parameters, and is called first."""
    model = run.build(small)
    optimizer, call = run.start(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    first, last = nn.Linear(4, 3), list(model.parameters())[2:]
    first.weight, first.bias = last
    for step in range(run.steps):
        optimizer.zero_grad()
        call(first(run.batch(step, 2, 4))).pow(2).mean().backward()
        run.average(model)
        optimizer.step()


class _Twice(nn.Module):
    """A parametrization."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Double."""
        return 2 * value


def pruned_and_parametrized(run: Run) -> None:
    """A layer is pruned for some steps and another parametrized, after wrapping."""
    model: Any = run.build(small)
    shorten: Any = prune.l1_unstructured
    restore: Any = prune.remove
    optimizer, call = run.start(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
    for step in range(run.steps):
        if step == 3:
            shorten(model[0], "weight", amount=0.5)
            parametrize.register_parametrization(model[2], "weight", _Twice())
        if step == 5:
            run.see(model[0].weight_orig, model[2].parametrizations.weight.original)
        if step == 6:
            restore(model[0], "weight")
        if step == 7:
            parametrize.remove_parametrizations(model[2], "weight", leave_parametrized=True)
            run.see(model[2].weight)
        optimizer.zero_grad()
        call(run.batch(step, 2, 3)).pow(2).mean().backward()
        run.average(model)
        optimizer.step()


def flat_parameters(run: Run) -> None:
    """All parameters are views of one flat buffer of the loop's own, which it reads and shrinks."""

    def keep(model: nn.Module) -> torch.Tensor:
        flat = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        nn.utils.vector_to_parameters(flat, model.parameters())
        return flat

    def after(step: int, flat: torch.Tensor) -> Any:
        if step % 2:
            flat.mul_(0.9)
        return [flat, flat.norm()]

    train(run, keep=keep, after=after)


LOOPS = (
    penalty,
    norms,
    moving_average,
    clamped,
    state_dict_alias,
    aliases,
    aliases_written,
    late_aliases,
    read_in_thread,
    autograd_function,
    constructed,
    copied,
    function_transforms,
    tied_after_wrapping,
    pruned_and_parametrized,
    flat_parameters,
)
