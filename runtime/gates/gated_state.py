"""An optimizer's state that is made current before each use, except by the updates themselves."""

import sys
from collections import defaultdict
from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Sequence,
    ValuesView,
)
from typing import Any

import torch

from pace.runtime.engine.buffers import shared_elsewhere
from pace.runtime.gates.gradient_gates import bypassed

_State = dict[str, Any]


class GatedState(defaultdict[torch.Tensor, _State]):
    """State by parameter; each use of it first waits for pending updates.

    Attributes
    ----------
    exposed
        Whether other code may refer to a part of it, and so use that part later without waiting.
    """

    def __init__(self, state: dict[torch.Tensor, _State], make_current: Callable[[], None]) -> None:
        super().__init__(dict, state)
        self._make_current = make_current
        self.exposed = bool(state)

    def _wait(self) -> None:
        if not bypassed():  # an update uses the state that it is about to change
            self._make_current()
            self.exposed = True

    def __getitem__(self, parameter: torch.Tensor) -> _State:
        self._wait()
        return super().__getitem__(parameter)

    def __setitem__(self, parameter: torch.Tensor, state: _State) -> None:
        self._wait()
        super().__setitem__(parameter, state)

    def __delitem__(self, parameter: torch.Tensor) -> None:
        self._wait()
        super().__delitem__(parameter)

    def __contains__(self, parameter: object) -> bool:
        self._wait()
        return super().__contains__(parameter)

    def __len__(self) -> int:
        self._wait()
        return super().__len__()

    def __eq__(self, other: object) -> bool:
        self._wait()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        self._wait()
        return super().__ne__(other)

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __ior__(self, other: Any) -> "GatedState":  # type: ignore[override]  # of any mapping
        self.update(other)
        return self

    __hash__ = None  # type: ignore[assignment]  # as of any dictionary

    def get(self, parameter: torch.Tensor, default: Any = None) -> Any:
        """Read one parameter's state."""
        self._wait()
        return super().get(parameter, default)

    def pop(self, parameter: torch.Tensor, *default: Any) -> Any:
        """Remove and return one parameter's state."""
        self._wait()
        return super().pop(parameter, *default)

    def popitem(self) -> tuple[torch.Tensor, _State]:
        """Remove and return the state of any parameter."""
        self._wait()
        return super().popitem()

    def setdefault(self, parameter: torch.Tensor, default: Any = None) -> Any:
        """Return one parameter's state; set it to the default if there is none."""
        self._wait()
        return super().setdefault(parameter, default)

    def update(self, *states: Any, **named: Any) -> None:
        """Replace the state of some parameters."""
        self._wait()
        super().update(*states, **named)

    def clear(self) -> None:
        """Drop all state."""
        self._wait()
        super().clear()

    def copy(self) -> "defaultdict[torch.Tensor, _State]":  # type: ignore[override]  # not gated
        """Return a copy without the gate."""
        self._wait()
        return defaultdict(dict, dict.items(self))

    def __copy__(self) -> "defaultdict[torch.Tensor, _State]":  # type: ignore[override]  # not gated
        return self.copy()

    def items(self) -> ItemsView[torch.Tensor, _State]:  # type: ignore[override]  # a view all the same
        """Read all state."""
        self._wait()
        return super().items()

    def keys(self) -> KeysView[torch.Tensor]:  # type: ignore[override]
        """Read which parameters have state."""
        self._wait()
        return super().keys()

    def values(self) -> ValuesView[_State]:  # type: ignore[override]
        """Read all state."""
        self._wait()
        return super().values()

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._wait()
        return super().__iter__()

    def __reversed__(self) -> Iterator[torch.Tensor]:
        self._wait()
        return super().__reversed__()

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles belong to other optimizers, so they are not gated.
        return defaultdict, (dict, dict(self.items()))

    def held_elsewhere(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return the parameters whose state is referenced by other code."""
        if not self.exposed:
            return []
        found = []
        for parameter in parameters:
            entry = dict.get(self, parameter)
            if entry is not None and _held(entry):
                found.append(parameter)
            del entry
        self.exposed = bool(found)
        return found


# What sys.getrefcount returns for an object to which one container and one local variable refer.
_OWN = 3


def _held(entry: _State) -> bool:
    if sys.getrefcount(entry) > _OWN + 1:  # one more for the caller's
        return True
    return any(
        isinstance(value, torch.Tensor) and (sys.getrefcount(value) > _OWN or shared_elsewhere(value))
        for value in entry.values()
    )


def held_parts(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> Collection[torch.Tensor]:
    """Return the parameters whose state may be referenced by other code: all, if the state is not gated."""
    state = vars(optimizer)["state"]
    return state.held_elsewhere(parameters) if isinstance(state, GatedState) else parameters


def held_by_others(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether other code refers to the optimizer's dictionary of state, which cannot be gated then."""
    state = vars(optimizer)["state"]
    return not isinstance(state, GatedState) and sys.getrefcount(state) > _OWN


def gate_state(optimizer: torch.optim.Optimizer, make_current: Callable[[], None]) -> None:
    """Make each use of the optimizer's own state call `make_current` first."""
    if not isinstance(optimizer.state, GatedState):
        optimizer.state = GatedState(optimizer.state, make_current)


def ungate_state(optimizer: torch.optim.Optimizer) -> None:
    """Remove the gate from the optimizer's state, without waiting: after a failure no wait would end."""
    if isinstance(optimizer.state, GatedState):
        optimizer.state = defaultdict(dict, dict.items(optimizer.state))
