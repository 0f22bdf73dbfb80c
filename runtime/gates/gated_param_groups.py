"""An optimizer's parameter groups whose parameters are made current before anybody reads them.

Everything else in a group (the learning rate, say) is read and written without waiting.
"""

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

import torch


class GatedParamGroup(dict[str, Any]):
    """One parameter group; reading "params" waits for pending updates first."""

    def __init__(self, group: dict[str, Any], make_current: Callable[[], None]) -> None:
        super().__init__(group)
        self._make_current = make_current

    def __getitem__(self, key: str) -> Any:
        if key == "params":
            self._make_current()
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Read one entry."""
        return self[key] if key in self else default  # noqa: SIM401  # self.get is this method

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # a view all the same
        """Read all entries."""
        self._make_current()
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """Read all entries."""
        self._make_current()
        return super().values()

    def __iter__(self) -> Iterator[str]:
        """List the keys; defined here so that ``dict(...)`` and ``{**...}`` read through ``__getitem__``."""
        return super().__iter__()

    def copy(self) -> dict[str, Any]:
        """Read all entries into a plain dict."""
        return dict(self.items())

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles belong to optimizers of their own.
        return dict, (list(self.items()),)


def gate_param_groups(optimizer: torch.optim.Optimizer, make_current: Callable[[], None]) -> None:
    """Have the optimizer's own parameter groups call `make_current` before their parameters are read."""
    optimizer.param_groups[:] = [
        group if isinstance(group, GatedParamGroup) else GatedParamGroup(group, make_current)
        for group in optimizer.param_groups
    ]


def ungate_param_groups(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer plain parameter groups again."""
    optimizer.param_groups[:] = [dict(dict.items(group)) for group in optimizer.param_groups]
