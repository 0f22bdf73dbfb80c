"""Functions of torch that read a tensor without asking ``__torch_function__``: they ask the guards here."""

import functools
from collections.abc import Callable
from typing import Any

import torch

_CONSTRUCTORS = (
    "tensor",
    "asarray",
    "sparse_coo_tensor",
    "sparse_compressed_tensor",
    "sparse_csr_tensor",
    "sparse_csc_tensor",
    "sparse_bsr_tensor",
    "sparse_bsc_tensor",
)
_METHODS = ("new_tensor", "as_subclass")


def have_them_ask(ask: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
    """Put functions in the place of torch's that call `ask` with their arguments first; to be called once."""
    for owner, name in (
        *((torch, name) for name in _CONSTRUCTORS),
        (torch._C, "_to_dlpack"),
        (torch.utils.dlpack, "to_dlpack"),
        *((torch.Tensor, name) for name in _METHODS),
        (torch._C.ScriptFunction, "__call__"),
    ):
        own = getattr(owner, name, None)
        if own is not None:
            setattr(owner, name, _asking(own, ask))


def _asking(own: Any, ask: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> Any:
    @functools.wraps(own)
    def asking(*arguments: Any, **named: Any) -> Any:
        if not torch.compiler.is_compiling():  # what is compiled begins with current parameters
            ask(arguments, named)
        return own(*arguments, **named)

    return asking
