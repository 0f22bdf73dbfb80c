"""The gradients that are sent over parameter servers in a job that all-reduces the others."""

import fnmatch
from collections.abc import Sequence

from torch import nn

from pace.errors import InvalidOptions


def pushed_gradients(model: nn.Module, patterns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the gradients that are pushed, sorted.

    Parameters
    ----------
    patterns
        Names or shell patterns, for example "embedding.*"; None for the weights of all embeddings.

    Raises
    ------
    InvalidOptions
        If one matches no gradient, or there are no embeddings.
    """
    named = {name.replace("_orig_mod.", ""): parameter for name, parameter in model.named_parameters()}
    if patterns is None:
        tables = {
            module.weight for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        }
        found = {name for name, parameter in named.items() if parameter in tables}
        if not found:
            raise InvalidOptions(
                "communication is Mixed and the model has no embedding: say in Mixed(pushed=...) what to push"
            )
        return tuple(sorted(found))
    matched: set[str] = set()
    for pattern in patterns:
        if not isinstance(pattern, str) or not (mine := fnmatch.filter(named, pattern)):
            raise InvalidOptions(f"pushed has {pattern!r}: the model has no such gradient")
        matched.update(mine)
    return tuple(sorted(matched))
