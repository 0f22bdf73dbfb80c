"""Sizes of gradients from a list of a model's parameters, for traces that were recorded without shapes.

Two lines of torch write the list, in the order of definition::

    rows = [[name, list(p.shape), str(p.dtype)] for name, p in model.named_parameters() if p.requires_grad]
    json.dump(rows, open("parameters.json", "w"))

Gradients become ready in about the reverse order: which gradient has which size is an assumption, their
number and their sum are not.
"""

from collections.abc import Sequence
from pathlib import Path

from pace.documents.profile import ELEMENT_BYTES
from pace.errors import FormatError
from pace.formats.execution_trace import TracedTensor
from pace.formats.reading import stream_json, warn
from pace.formats.tensor_types import DTYPES, elements_of

_LARGEST = 2**50


def read_parameters(path: str | Path) -> list[TracedTensor]:
    """Read ``[[name, shape, dtype], ...]``.

    Raises
    ------
    FormatError
        With the row at fault.
    """
    tensors = []
    for place, row in enumerate(stream_json(path, "item")):
        fits = isinstance(row, list) and len(row) == 3 and isinstance(row[2], str)
        elements = elements_of(row[1]) if fits else None
        dtype = DTYPES.get(row[2].removeprefix("torch.").lower()) if fits else None
        if elements is None or dtype is None or elements > _LARGEST:
            raise FormatError(path, 'expected ["name", [shape], "torch.dtype"]', f"[{place}]")
        tensors.append(TracedTensor(size_bytes=elements * ELEMENT_BYTES[dtype], dtype=dtype))
    if not tensors:
        raise FormatError(path, "no parameters: expected a list of [name, shape, dtype]")
    return tensors


def in_ready_order(path: str, parameters: Sequence[TracedTensor], num_gradients: int) -> list[TracedTensor]:
    """Return the parameters as gradients become ready: the last defined first."""
    if len(parameters) != num_gradients:
        raise FormatError(
            path,
            f"{num_gradients} gradients a step, and {len(parameters)} parameters in the list: not the same "
            "model, or some are frozen, tied or unused",
        )
    warn(path, "sizes come from the list of parameters, taken to be ready in reverse order of definition")
    return list(reversed(parameters))
