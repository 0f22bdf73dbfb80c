"""Write a profile as a JSON document that people can read: an op, a gradient or a sample a line."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from pace.documents.profile import Profile


def dump_profile(profile: "Profile") -> str:
    """Return the document; ``parse_profile`` reads the same profile back. Deterministic."""
    lines = [
        '"schema_version": 1',
        f'"name": {json.dumps(profile.name)}',
        f'"workers": {profile.workers}',
        f'"ops": {_rows(_without_defaults(op) for op in profile.ops)}',
        f'"gradients": {_rows(gradient.model_dump(mode="json") for gradient in profile.gradients)}',
        f'"allreduce": {_cost(profile.allreduce)}',
        f'"metadata": {json.dumps(profile.metadata, indent=1, allow_nan=False)}',
    ]
    lines[-1:-1] = [
        f'"{name}": {_cost(half)}'
        for name, half in (("reduce_scatter", profile.reduce_scatter), ("all_gather", profile.all_gather))
        if half is not None
    ]
    if profile.compute_slowdown != 1:
        lines.insert(-1, f'"compute_slowdown": {json.dumps(profile.compute_slowdown)}')
    if profile.update != "per-gradient":
        lines.insert(-1, f'"update": {json.dumps(profile.update)}')
    if profile.load is not None:
        lines.insert(-1, f'"load": {profile.load.model_dump_json()}')
    return "{" + ",\n ".join(lines) + "}\n"


def compact_profile(profile: "Profile") -> str:
    """Return the shortest document, of which a profile's digest is: what says nothing is left out.

    Equal profiles have the same document. A new field leaves those of profiles without it, and so their
    schedules, as they are.
    """
    costs = {name: getattr(profile, name) for name in ("allreduce", "reduce_scatter", "all_gather")}
    rest = profile.model_dump_json(exclude_defaults=True, exclude={*costs, "metadata"})
    tail = "".join(f',"{name}":{_cost(cost)}' for name, cost in costs.items() if cost is not None)
    if profile.metadata:
        tail += f',"metadata":{json.dumps(profile.metadata, sort_keys=True, allow_nan=False)}'
    return f'{{"schema_version":{profile.schema_version},{rest[1:-1]}{tail}}}'


def _without_defaults(op: BaseModel) -> dict[str, Any]:
    return op.model_dump(mode="json", exclude_defaults=True)


def _cost(cost: BaseModel) -> str:
    document = cost.model_dump(mode="json")
    samples = document.pop("samples", None)
    if samples is None:
        return json.dumps({name: value for name, value in document.items() if value is not None})
    document = {name: value for name, value in document.items() if value}
    return json.dumps(document)[:-1] + f', "samples": {_rows(samples)}}}'


def _rows(values: Iterable[Any]) -> str:
    rows = [json.dumps(value, allow_nan=False) for value in values]
    return "[\n  " + ",\n  ".join(rows) + "]" if rows else "[]"
