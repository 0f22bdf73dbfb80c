"""The wrappers' arguments: what each of them may be. How ranks compare them lives in ``agreement``."""

import math
import numbers
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions
from pace.runtime.replanning import Replanning
from pace.runtime.transports.compression import Compression
from pace.runtime.transports.transport import Discipline, Order

Mode = Literal["overlap", "barrier", "auto"]
Reduction = Literal["average", "sum"]
ShardingChoice = Literal["off", "auto", "on"]

DEFAULT_TIMEOUT_S = 300.0

# Three years: what clocks of all libraries below can still add to the time of day.
LONGEST_TIMEOUT_S = 1e8


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperOptions:
    """Arguments that every rank must give alike; see ``pace.runtime.torch.DistributedOptimizer``.

    Attributes
    ----------
    gradient_predivide_factor
        What gradients are divided by before they are summed, where `op` alone does not say it: for transports
        that do the rest of an average.
    own_buffers
        Whether buffers are left as they are at the start, since somebody else sends them.
    """

    mode: Mode
    order: Order
    op: Reduction
    compression: Compression
    backward_passes_per_step: int
    credit_bytes: int | None
    timeout_s: float
    broadcast_parameters: bool
    gradient_predivide_factor: float | None = None
    max_grad_norm: float | None = None
    sharding: ShardingChoice = "off"
    own_buffers: bool = False

    def __post_init__(self) -> None:
        """Refuse values that are not allowed.

        Raises
        ------
        InvalidOptions
            Names the argument, its value and what is allowed.
        """
        require_one_of("mode", self.mode, get_args(Mode))
        require_one_of("order", self.order, (*get_args(Discipline), "auto"))
        require_one_of("op", self.op, get_args(Reduction))
        require_one_of("compression", self.compression, get_args(Compression))
        require_whole("backward_passes_per_step", self.backward_passes_per_step, least=1)
        if self.credit_bytes is not None:
            require_whole("credit_bytes", self.credit_bytes, least=1)
        require_bool("broadcast_parameters", self.broadcast_parameters)
        require_one_of("sharding", self.sharding, get_args(ShardingChoice))
        if self.max_grad_norm is not None and not (is_number(self.max_grad_norm) and self.max_grad_norm > 0):
            raise refusal("max_grad_norm", self.max_grad_norm, "a positive number")
        if not is_timeout(self.timeout_s):
            raise refusal(
                "timeout_s", self.timeout_s, f"a positive number of seconds, at most {LONGEST_TIMEOUT_S:g},"
            )
        factor = self.gradient_predivide_factor
        if factor is not None and not (is_number(factor) and 0 < factor < math.inf):
            raise refusal("gradient_predivide_factor", factor, "a positive number")

    def divisor(self, size: int) -> float:
        """Return what each of `size` ranks divides its gradients by before they are summed."""
        if self.gradient_predivide_factor is not None:
            return self.gradient_predivide_factor
        return size if self.op == "average" else 1


def refusal(name: str, value: object, needed: str) -> InvalidOptions:
    """Return the error for the value of an argument."""
    return InvalidOptions(f"{name} is {value!r}; {needed} is needed")


def require_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse what is not among a few words."""
    if not isinstance(value, str) or value not in allowed:
        words = [repr(word) for word in allowed]
        raise refusal(name, value, f"{', '.join(words[:-1])} or {words[-1]}")


def require_whole(name: str, value: object, *, least: int) -> None:
    """Refuse what is no whole number, or less than `least`."""
    if not is_number(value) or not isinstance(value, numbers.Integral) or value < least:
        raise refusal(name, value, f"a whole number of at least {least}")


def require_bool(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise refusal(name, value, "True or False")


def require_instance(name: str, value: object, kinds: type | tuple[type, ...], needed: str) -> None:
    """Refuse what is of none of these types."""
    if not isinstance(value, kinds):
        shown = (
            f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
        )
        raise InvalidOptions(f"{name} is {shown}; {needed} is needed")


def is_number(value: object) -> bool:
    """Whether a value is a real number, and not a truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_timeout(value: object) -> bool:
    """Whether a value is a number of seconds that can be waited for."""
    return isinstance(value, numbers.Real) and is_number(value) and 0 < float(value) <= LONGEST_TIMEOUT_S


def connecting_timeout_s(timeout_s: float) -> float:
    """Return how long to wait for the other ranks, who are also told of a `timeout_s` that makes no sense."""
    return timeout_s if is_timeout(timeout_s) else DEFAULT_TIMEOUT_S


def check_source(schedule: Any, service: Any, job: Any, api_key: Any, replanning: Any) -> None:
    """Refuse arguments for a schedule's source that cannot be meant.

    Raises
    ------
    InvalidOptions
        Names the argument, its value and what is allowed.
    """
    if schedule is not None:
        require_instance(
            "schedule",
            schedule,
            (Schedule, str, Path),
            "a Schedule or the path of one",
        )
    for name, value in {"service": service, "job": job, "api_key": api_key}.items():
        if value is not None and (not isinstance(value, str) or not value):
            shown = value if name != "api_key" else type(value)  # keys are never shown
            raise refusal(name, shown, "a text that is not empty")
    if replanning is not None:
        require_instance("replanning", replanning, Replanning, "a Replanning")
    if schedule is not None and service is not None:
        raise InvalidOptions("give a schedule or a service, not both")
