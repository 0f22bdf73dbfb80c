"""Makes a wrapper look like the user's optimizer to training loops, schedulers and checkpoints."""

from abc import abstractmethod
from typing import Any

import torch

from pace.errors import InvalidUse


class _Forwarded:
    """An attribute that is read, set and deleted on the wrapped optimizer."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, stand_in: Any, _owner: Any = None) -> Any:
        return self if stand_in is None else getattr(stand_in.optimizer, self._name)

    def __set__(self, stand_in: Any, value: Any) -> None:
        setattr(stand_in.optimizer, self._name, value)

    def __delete__(self, stand_in: Any) -> None:
        delattr(stand_in.optimizer, self._name)


class StandIn(torch.optim.Optimizer):
    """Stands in for a wrapped optimizer: its groups, state and all other attributes are those of the latter.

    ``Optimizer.__init__`` is not called, as the wrapped optimizer holds everything that it would set.
    """

    optimizer: torch.optim.Optimizer

    # A GradScaler leaves these on an optimizer whose fused update divides by the scale itself.
    grad_scale = _Forwarded("grad_scale")
    found_inf = _Forwarded("found_inf")

    @abstractmethod
    def finish_updates(self) -> None:
        """Wait until the wrapped optimizer's state is that of the latest ``step()``."""

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state after every pending update."""
        self.finish_updates()
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's state, after every pending update."""
        self.finish_updates()
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002
        """Raise InvalidUse: the plan covers the parameters that the optimizer had when it was wrapped."""
        raise InvalidUse(
            "add_param_group: the plan covers the parameters that the optimizer had when it was wrapped;"
            " add the group to the optimizer itself and wrap it again"
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the user's optimizer."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, _groups: list[dict[str, Any]]) -> None:
        raise InvalidUse(
            "param_groups cannot be replaced: the plan covers the parameters that the optimizer had when it"
            " was wrapped; change the groups in place, or close() the wrapper and wrap the changed optimizer"
        )

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the user's optimizer."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    @property
    def state(self) -> Any:
        """The state of the user's optimizer, after every pending update."""
        self.finish_updates()
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.finish_updates()
        self.optimizer.state = state

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise InvalidUse(
            f"a {type(self).__name__} can neither be copied nor pickled, as it holds threads and connections:"
            " copy or save what its state_dict() returns"
        )

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)
