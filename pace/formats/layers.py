"""Per-layer tables: a measured time forward and backward, parameter bytes and edges for each layer.

CSV is read here; ``pace.formats.pipedream`` reads the form that PipeDream's profiler writes. Both
become a profile on one compute stream with one gradient for each layer that has parameters.
"""

import graphlib
import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pace.documents.collective_costs import AllReduce
from pace.documents.profile import ELEMENT_BYTES, DType, Gradient, Op, Profile
from pace.errors import FormatError
from pace.formats.reading import number, read_table, validated, whole_number

_SECONDS = {"_s": 1.0, "_ms": 1e-3, "_us": 1e-6}
_TIMES = {f"{way}{unit}" for way in ("forward", "backward") for unit in _SECONDS}
_COLUMNS = {"name", "inputs", "dtype", "parameter_bytes", "parameters"} | _TIMES


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One layer of a table; `inputs` are names of layers, `position` says where it was read."""

    name: str
    forward_s: float
    backward_s: float
    parameter_bytes: int
    dtype: DType = "float32"
    inputs: tuple[str, ...] = ()
    position: str


def read_layer_csv(
    path: str | Path, *, workers: int, allreduce: AllReduce, name: str | None = None
) -> Profile:
    """Make a profile from a CSV table with a header and one layer a row.

    Columns: `name`; `forward_s`, `forward_ms` or `forward_us`; likewise `backward_...`;
    `parameter_bytes`, or `parameters` in elements; optional `inputs` (names separated by semicolons;
    without the column each layer follows the one before) and `dtype` (float32 if left out).

    Raises
    ------
    FormatError
        With the line at fault.
    """
    (_, header), *rows = read_table(path)
    _check_header(path, header)
    layers: list[LayerRow] = []
    for line, row in rows:
        position = f"line {line}"
        if len(row) != len(header):
            raise FormatError(path, f"expected {len(header)} cells, but the row has {len(row)}", position)
        cells = dict(zip(header, row, strict=True))
        previous = (layers[-1].name,) if layers else ()
        layers.append(_layer(path, cells, position, previous))
    return profile_of_layers(
        path, layers, workers=workers, allreduce=allreduce, name=name, tool="layer table (CSV)"
    )


def _check_header(path: str | Path, header: Sequence[str]) -> None:
    if "" in header:
        reason = f"column {header.index('') + 1} of {len(header)} has no name: remove it, or name it"
        raise FormatError(path, reason, "line 1")
    unknown = sorted(set(header) - _COLUMNS)
    if unknown or len(set(header)) < len(header):
        shown = unknown or sorted({column for column in header if header.count(column) > 1})
        known = ", ".join(sorted(_COLUMNS))
        raise FormatError(
            path, f"unknown or repeated columns {', '.join(shown)}; known are {known}", "line 1"
        )
    for way in ("forward", "backward"):
        if len({f"{way}{unit}" for unit in _SECONDS} & set(header)) != 1:
            raise FormatError(path, f"expected one of the columns {way}_s, {way}_ms, {way}_us", "line 1")
    if "name" not in header or len({"parameter_bytes", "parameters"} & set(header)) != 1:
        reason = "expected the column name and one of parameter_bytes, parameters"
        raise FormatError(path, reason, "line 1")


def _layer(path: str | Path, cells: dict[str, str], position: str, previous: tuple[str, ...]) -> LayerRow:
    times = {}
    for column in _TIMES & set(cells):
        way, _, unit = column.rpartition("_")
        times[way] = number(cells[column], path, column, position) * _SECONDS[f"_{unit}"]
    dtype = cells.get("dtype") or "float32"
    if dtype not in ELEMENT_BYTES:
        known = ", ".join(ELEMENT_BYTES)
        raise FormatError(path, f"unknown dtype {dtype!r}; known are {known}", position)
    if "parameters" in cells:
        elements = whole_number(cells["parameters"], path, "parameters", position)
        size = elements * ELEMENT_BYTES[dtype]
    else:
        size = whole_number(cells["parameter_bytes"], path, "parameter_bytes", position)
    inputs = previous
    if "inputs" in cells:
        inputs = tuple(part.strip() for part in cells["inputs"].split(";") if part.strip())
    return LayerRow(
        name=cells["name"],
        forward_s=times["forward"],
        backward_s=times["backward"],
        parameter_bytes=size,
        dtype=dtype,
        inputs=inputs,
        position=position,
    )


def profile_of_layers(
    path: str | Path,
    layers: Sequence[LayerRow],
    *,
    workers: int,
    allreduce: AllReduce,
    name: str | None,
    tool: str,
) -> Profile:
    """Make a profile: backward in reverse topological order, then the next forward, on one stream."""
    if not any(layer.parameter_bytes for layer in layers):
        raise FormatError(path, f"none of {len(layers)} layers has parameters: there is nothing to send")
    if not any(layer.forward_s or layer.backward_s for layer in layers):
        raise FormatError(path, "every time is 0")
    *others, last = layers
    total = sum(layer.parameter_bytes for layer in others)
    if re.search(r"\b(total|sum)\b", last.name, re.IGNORECASE) and 0 < total == last.parameter_bytes:
        raise FormatError(path, f'"{last.name}" is the sum of the layers: leave this row out', last.position)
    by_name: dict[str, LayerRow] = {}
    for layer in layers:
        if not layer.name:
            raise FormatError(path, "a layer has no name", layer.position)
        if layer.name in by_name:
            raise FormatError(path, f'two layers are named "{layer.name}"', layer.position)
        by_name[layer.name] = layer
    for layer in layers:
        for producer in layer.inputs:
            if producer not in by_name:
                reason = f'layer "{layer.name}" reads "{producer}", which is no layer'
                raise FormatError(path, reason, layer.position)
    order = _topological(path, layers)
    with validated(path):
        forward = [
            Op(
                name=f"fwd/{layer.name}",
                duration_s=layer.forward_s,
                deps=tuple(f"fwd/{producer}" for producer in dict.fromkeys(layer.inputs)),
                stream="compute",
                waits_for=(layer.name,) if layer.parameter_bytes else (),
            )
            for layer in order
        ]
        users: dict[str, list[str]] = {layer.name: [] for layer in order}
        for layer in order:
            for producer in dict.fromkeys(layer.inputs):
                users[producer].append(f"bwd/{layer.name}")
        backward = [
            Op(
                name=f"bwd/{layer.name}",
                duration_s=layer.backward_s,
                deps=tuple(users[layer.name]),
                stream="compute",
            )
            for layer in reversed(order)
        ]
        gradients = [
            Gradient(
                name=layer.name,
                size_bytes=_whole_elements(path, layer),
                dtype=layer.dtype,
                producer=f"bwd/{layer.name}",
            )
            for layer in reversed(order)
            if layer.parameter_bytes
        ]
        return Profile(
            name=name or Path(path).name.partition(".")[0],
            workers=workers,
            ops=tuple(backward + forward),
            gradients=tuple(gradients),
            allreduce=allreduce,
            metadata={
                "origin": "imported",
                "tool": tool,
                "note": "One gradient for each layer: the table gives the sum of its parameters.",
            },
        )


def _whole_elements(path: str | Path, layer: LayerRow) -> int:
    if layer.parameter_bytes % ELEMENT_BYTES[layer.dtype]:
        reason = f'layer "{layer.name}": {layer.parameter_bytes} bytes are no whole number of {layer.dtype}'
        raise FormatError(path, reason, layer.position)
    return layer.parameter_bytes


def _topological(path: str | Path, layers: Sequence[LayerRow]) -> list[LayerRow]:
    """Sort so that inputs come first and the table's order is kept where it may be."""
    sorter = graphlib.TopologicalSorter({layer.name: layer.inputs for layer in layers})
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        cycle = " -> ".join(f'"{name}"' for name in error.args[1])
        raise FormatError(path, f"layers feed one another in a cycle: {cycle}") from None
    place = {layer.name: number for number, layer in enumerate(layers)}
    order: list[LayerRow] = []
    ready: list[int] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, place[name])
        first = layers[heapq.heappop(ready)]
        order.append(first)
        sorter.done(first.name)
    return order
