"""An optimizer's state that is made current before anybody reads it, but for the updates themselves."""

from collections import defaultdict
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

import torch

from pace.runtime.gates.gradient_gates import bypassed

_State = dict[str, Any]


class GatedState(defaultdict[torch.Tensor, _State]):
    """State by parameter; reading it waits for pending updates first."""

    def __init__(self, state: dict[torch.Tensor, _State], make_current: Callable[[], None]) -> None:
        super().__init__(dict, state)
        self._make_current = make_current

    def _wait(self) -> None:
        if not bypassed():  # an update reads the state that it is about to change
            self._make_current()

    def __getitem__(self, parameter: torch.Tensor) -> _State:
        self._wait()
        return super().__getitem__(parameter)

    def __contains__(self, parameter: object) -> bool:
        self._wait()
        return super().__contains__(parameter)

    def __len__(self) -> int:
        self._wait()
        return super().__len__()

    def get(self, parameter: torch.Tensor, default: Any = None) -> Any:
        """Read one parameter's state."""
        self._wait()
        return super().get(parameter, default)

    def items(self) -> ItemsView[torch.Tensor, _State]:  # type: ignore[override]  # a view all the same
        """Read all state."""
        self._wait()
        return super().items()

    def values(self) -> ValuesView[_State]:  # type: ignore[override]
        """Read all state."""
        self._wait()
        return super().values()

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._wait()
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles belong to optimizers of their own.
        return defaultdict, (dict, dict(self.items()))


def gate_state(optimizer: torch.optim.Optimizer, make_current: Callable[[], None]) -> None:
    """Have the optimizer's own state call `make_current` before it is read."""
    if not isinstance(optimizer.state, GatedState):
        optimizer.state = GatedState(optimizer.state, make_current)


def ungate_state(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer plain state again, as it is: after a failure nothing can be waited for."""
    if isinstance(optimizer.state, GatedState):
        optimizer.state = defaultdict(dict, dict.items(optimizer.state))
