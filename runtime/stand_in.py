"""What training loops, schedulers and checkpoints see of a wrapper: the user's optimizer's own."""

from abc import abstractmethod
from typing import Any

import torch

from pace.errors import InvalidUse


class StandIn(torch.optim.Optimizer):
    """Stands in for another optimizer, whose groups, state and everything else it shows.

    ``Optimizer.__init__`` is not called: everything it would hold is the other's.
    """

    optimizer: torch.optim.Optimizer

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the other optimizer's state is that of the latest ``step()``."""

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state after every pending update."""
        self.synchronize()
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state, after every pending update."""
        self.synchronize()
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002
        """Refused: the schedule covers the parameters there were when the optimizer was wrapped."""
        raise InvalidUse(
            "add_param_group: the plan covers the parameters that the optimizer had when it was wrapped;"
            " add the group to the optimizer itself and wrap it again"
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The user's optimizer's own parameter groups."""
        return self.optimizer.param_groups

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The user's optimizer's own defaults."""
        return self.optimizer.defaults

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The user's optimizer's own state, after every pending update."""
        self.synchronize()
        return self.optimizer.state

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)
