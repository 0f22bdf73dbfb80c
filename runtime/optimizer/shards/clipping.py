"""Checks the arguments of ``clip_grad_norm_``."""

from pace.errors import InvalidUse
from pace.runtime.argument_checks import is_number, refusal


def check_norms(max_norm: float, norm_type: float) -> None:
    """Check the arguments of ``clip_grad_norm_``.

    Raises
    ------
    InvalidUse
        If one is not a positive number; the message names it.
    """
    if not is_number(max_norm) or not max_norm > 0:
        raise InvalidUse(str(refusal("max_norm", max_norm, "a positive number")))
    if not is_number(norm_type) or not norm_type > 0:
        raise InvalidUse(str(refusal("norm_type", norm_type, "a positive number, or infinity,")))
