"""The arguments of wrappers and their checks. The comparison between ranks is in ``agreement``."""

import math
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from pace.errors import InvalidOptions
from pace.runtime.argument_checks import (
    LONGEST_TIMEOUT_S,
    is_number,
    is_timeout,
    refusal,
    require_bool,
    require_instance,
    require_one_of,
    require_whole,
)
from pace.runtime.options import AllReduce, Communication, GradientOp, Mode, Plan, Tune

_COMPARED = (
    "mode",
    "timeout_s",
    "op",
    "backward_passes_per_step",
    "broadcast_parameters",
    "gradient_predivide_factor",
    "max_grad_norm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperOptions:
    """The arguments of a wrapper; see ``pace.runtime.torch.DistributedOptimizer``.

    Attributes
    ----------
    gradient_predivide_factor
        Gradients are divided by this before they are summed, on transports that do the rest of an average;
        None if `op` alone decides.

    Raises
    ------
    InvalidOptions
        If a value is not allowed; the message names the argument, its value and what is allowed.
    """

    plan: Plan | Tune = field(default_factory=Plan)
    communication: Communication = field(default_factory=AllReduce)
    mode: Mode = "auto"
    timeout_s: float = 300.0
    op: GradientOp = "average"
    backward_passes_per_step: int = 1
    broadcast_parameters: bool = True
    gradient_predivide_factor: float | None = None
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        """Refuse values that are not allowed."""
        require_instance(
            "plan", self.plan, (Plan, Tune), "a Plan, as in plan=Plan(schedule='schedule.json'), or a Tune"
        )
        require_instance(
            "communication",
            self.communication,
            Communication,
            "AllReduce(), or ParameterServers() or Mixed() of pace_servers.runtime,",
        )
        if isinstance(self.plan, Tune) and self.communication.sharding != "off":
            raise InvalidOptions(
                f"plan is a Tune and sharding is {self.communication.sharding!r}: only whole updates can be"
                " tuned, so leave sharding out"
            )
        if cast("str", self.mode) == "plain":  # the log's name of a mode
            raise InvalidOptions(
                "mode is 'plain'; 'overlap', 'barrier', 'auto' or 'check' is needed:"
                " 'auto' keeps 'plain' where it is fastest, and plain training needs no PACE"
            )
        require_one_of("mode", self.mode, get_args(Mode))
        if self.mode == "check" and isinstance(self.plan, Tune):
            raise InvalidOptions(
                'mode is "check" and plan is a Tune, which measures times that checking makes too long: leave'
                " plan out while you check"
            )
        require_one_of("op", self.op, get_args(GradientOp))
        require_whole("backward_passes_per_step", self.backward_passes_per_step, least=1)
        require_bool("broadcast_parameters", self.broadcast_parameters)
        if self.max_grad_norm is not None and not (is_number(self.max_grad_norm) and self.max_grad_norm > 0):
            raise refusal("max_grad_norm", self.max_grad_norm, "a positive number")
        if not is_timeout(self.timeout_s):
            raise refusal(
                "timeout_s", self.timeout_s, f"a positive number of seconds, at most {LONGEST_TIMEOUT_S:g},"
            )
        factor = self.gradient_predivide_factor
        if factor is not None and not (is_number(factor) and 0 < factor < math.inf):
            raise refusal("gradient_predivide_factor", factor, "a positive number")

    @property
    def compared(self) -> dict[str, Any]:
        """The arguments that must be equal on all ranks, by name."""
        return {name: getattr(self, name) for name in _COMPARED} | {
            "communication": type(self.communication).__name__,
            "compression": self.communication.compression,
            "sharding": self.communication.sharding,
            "order": self.plan.order,
            "credit_bytes": self.plan.credit_bytes,
            "tuning": self.plan.shown if isinstance(self.plan, Tune) else None,
        }

    def divisor(self, size: int) -> float:
        """Return what each of `size` ranks divides its gradients by before they are summed."""
        if self.gradient_predivide_factor is not None:
            return self.gradient_predivide_factor
        return size if self.op == "average" else 1
