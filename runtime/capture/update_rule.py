"""Watches whether a training loop looks at all gradients before it updates: clipping, and loss scaling.

``torch.nn.utils.clip_grad_norm_`` takes the norm of every gradient, ``torch.amp.GradScaler`` asks whether any
of them is infinite, and users' own loops do the same with other functions. All of them give tensors with the
gradients' shapes to one of a few functions of torch between the backward pass and the optimizer's step. What
the optimizer itself computes does not count: a norm that it takes of each gradient waits for that one only.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from pace.documents.profile import UpdateRule

# Functions that make a few numbers, or a verdict, of whole tensors.
READERS = frozenset(
    {
        "norm",
        "vector_norm",
        "linalg_vector_norm",
        "_foreach_norm",
        "_amp_foreach_non_finite_check_and_unscale_",
        "isfinite",
        "isinf",
        "isnan",
        "sum",
    }
)
# Parameters without a gradient in this iteration are not looked at.
MOST = 0.9


_active: "weakref.WeakSet[UpdateRuleWatch]" = weakref.WeakSet()


def note_norm_of_all() -> None:
    """Tell all watchers that a norm of all gradients is computed; with sharded gradients no rank has all."""
    for watch in _active:
        watch.note_norm_of_all()


class UpdateRuleWatch(TorchFunctionMode):
    """Counts the gradients that a loop looks at; active from ``begin`` to ``end``, on the calling thread.

    Parameters
    ----------
    parameters
        Parameters whose gradients are sent.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__()
        self._wanted = Counter(tuple(parameter.shape) for parameter in parameters)
        self._num_elements = sum(
            count * int(torch.Size(shape).numel()) for shape, count in self._wanted.items()
        )
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._whole = False
        self._stepping = False
        self._handles: list[Any] = []

    def begin(self) -> None:
        """Watch from now on."""

        def pause(*_: Any) -> None:
            self._stepping = True

        def go_on(*_: Any) -> None:
            self._stepping = False

        self._handles = [register_optimizer_step_pre_hook(pause), register_optimizer_step_post_hook(go_on)]
        _active.add(self)
        self.__enter__()  # type: ignore[no-untyped-call]  # torch gives it no types

    def end(self) -> None:
        """Watch no longer; idempotent."""
        if self._handles:
            for handle in self._handles:
                handle.remove()
            self._handles = []
            _active.discard(self)
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # as above

    def note_norm_of_all(self) -> None:
        """Record that all gradients were read."""
        self._whole = True

    @property
    def rule(self) -> UpdateRule:
        """What was seen: a look at all gradients, or none at most of them."""
        seen = sum((self._wanted & self._seen).values())
        wanted = sum(self._wanted.values())
        every = wanted > 0 and (self._whole or seen >= MOST * wanted)
        return "global-norm" if every else "per-gradient"

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Count what a function is given, and call it."""
        del types
        if not self._stepping and getattr(func, "__name__", "") in READERS:
            for tensor in _tensors(args):
                self._seen[tuple(tensor.shape)] += 1
                self._whole = self._whole or 0 < tensor.numel() == self._num_elements > 1
        return func(*args, **(kwargs or {}))


def _tensors(args: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in args:
        if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
