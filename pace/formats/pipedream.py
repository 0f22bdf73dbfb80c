"""The graph.txt form of PipeDream's profiler: a line for each layer, then a line for each edge."""

import re
from pathlib import Path

from pace.documents.collective_costs import AllReduce
from pace.documents.profile import Profile
from pace.errors import FormatError
from pace.formats.layers import LayerRow, profile_of_layers
from pace.formats.reading import number, read_lines, warn, whole_number

_FIELD = re.compile(r"(\w+)=([^,\s]+)")
_TIMES = ("forward_compute_time", "backward_compute_time")


def read_pipedream(
    path: str | Path, *, workers: int, allreduce: AllReduce, name: str | None = None
) -> Profile:
    """Make a profile from the `graph.txt` of PipeDream's profiler.

    Its lines are `NODE -- LAYER -- forward_compute_time=..., ...` and, indented, `NODE -- NODE`. Times are in
    milliseconds, sizes in bytes of float32. The node called Input is kept with no time: what
    was measured there is the loading of data.

    Raises
    ------
    FormatError
        With the line at fault.
    """
    nodes: dict[str, tuple[str, str, dict[str, str]]] = {}
    edges: list[tuple[str, str, str]] = []
    for line, text in read_lines(path):
        position = f"line {line}"
        if not text.strip():
            continue
        parts = [part.strip() for part in text.strip().split(" -- ")]
        if text[0].isspace() and len(parts) == 2:
            edges.append((parts[0], parts[1], position))
        elif len(parts) >= 3:
            if parts[0] in nodes:
                raise FormatError(path, f'two layers are named "{parts[0]}"', position)
            nodes[parts[0]] = (position, " -- ".join(parts[1:-1]), dict(_FIELD.findall(parts[-1])))
        else:
            raise FormatError(path, f"neither a layer nor an edge: {text[:80]!r}", position)
    if not nodes:
        raise FormatError(path, "no layers: expected lines like NODE -- LAYER -- forward_compute_time=...")
    if len(nodes) > 1 and not edges:
        raise FormatError(path, f"{len(nodes)} layers without edges between them: is the file cut off?")
    names = {node: _layer_name(node, kind) for node, (_, kind, _) in nodes.items()}
    inputs = _inputs(path, names, edges)
    layers = [
        _layer(path, names[node], position, kind, fields, tuple(inputs[node]))
        for node, (position, kind, fields) in sorted(nodes.items(), key=_number_of_node)
    ]
    return profile_of_layers(
        path, layers, workers=workers, allreduce=allreduce, name=name, tool="layer table (graph.txt)"
    )


def _number_of_node(item: tuple[str, object]) -> tuple[int, str]:
    digits = re.sub(r"\D", "", item[0])
    return int(digits[:18]) if digits else 0, item[0]


def _layer_name(node: str, kind: str) -> str:
    layer = re.match(r"\w+", kind)
    return f"{node}.{layer.group()}" if layer else node


def _inputs(
    path: str | Path, names: dict[str, str], edges: list[tuple[str, str, str]]
) -> dict[str, list[str]]:
    inputs: dict[str, list[str]] = {node: [] for node in names}
    for source, target, position in edges:
        for end in (source, target):
            if end not in names:
                raise FormatError(path, f'the edge names "{end}", which is no layer', position)
        inputs[target].append(names[source])
    return inputs


def _layer(
    path: str | Path,
    name: str,
    position: str,
    kind: str,
    fields: dict[str, str],
    inputs: tuple[str, ...],
) -> LayerRow:
    for field in (*_TIMES, "parameter_size"):
        if field not in fields:
            raise FormatError(path, f'layer "{name}" has no {field}', position)
    forward, backward = (number(fields[field], path, field, position) / 1e3 for field in _TIMES)
    if kind == "Input":
        if backward:
            warn(path, f"{position}: the time of the Input layer's backward pass was dropped")
        forward = backward = 0.0
    return LayerRow(
        name=name,
        forward_s=forward,
        backward_s=backward,
        parameter_bytes=whole_number(fields["parameter_size"], path, "parameter_size", position),
        inputs=inputs,
        position=position,
    )
