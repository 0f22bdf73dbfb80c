"""Write a profile as a JSON document that people can read: an op, a gradient or a sample a line."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from pace.documents.profile import Gradient, Op, Profile

# As json.dumps writes strings and numbers; NumPy's floats have a repr of their own.
_quoted = json.encoder.encode_basestring_ascii
_written = float.__repr__


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
    """Return the shortest document: what says nothing is left out."""
    costs = {name: getattr(profile, name) for name in ("allreduce", "reduce_scatter", "all_gather")}
    rest = profile.model_dump_json(exclude_defaults=True, exclude=set(costs))
    tail = "".join(f',"{name}":{_cost(cost)}' for name, cost in costs.items() if cost is not None)
    return f'{{"schema_version":{profile.schema_version},{rest[1:-1]}{tail}}}'


def canonical_profile(profile: "Profile") -> str:
    """Return the document that a profile's digest is of: all fields, sorted, but those that say nothing new.

    A field that is new leaves the digests of profiles without it, and so their schedules, as they are. The
    many ops and gradients are written here, in the bytes that ``json.dumps`` has for their sorted fields.
    """
    rest = profile.model_dump(mode="json", exclude={"ops", "gradients"})
    for name in ("counts", "deviations_s", "ranks"):
        if not rest["allreduce"].get(name, True):
            del rest["allreduce"][name]
    for name in ("reduce_scatter", "all_gather", "compute_slowdown", "update"):
        if rest[name] == type(profile).model_fields[name].default:
            del rest[name]
    parts = {
        name: json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        for name, value in rest.items()
    }
    parts["ops"] = f"[{','.join(map(_canonical_op, profile.ops))}]"
    parts["gradients"] = f"[{','.join(map(_canonical_gradient, profile.gradients))}]"
    return "{" + ",".join(f'"{name}":{parts[name]}' for name in sorted(parts)) + "}"


def _canonical_op(op: "Op") -> str:
    # Attributes of a model cost more than its dictionary: twice the time for a profile of thousands of ops.
    fields = op.__dict__
    deps, waits_for, stream = fields["deps"], fields["waits_for"], fields["stream"]
    kind = "" if fields["kind"] == "compute" else f'"kind":{_quoted(fields["kind"])},'
    return (
        f'{{"deps":[{_quoted(deps[0]) if len(deps) == 1 else _quoted_list(deps)}],'
        f'"duration_s":{_written(fields["duration_s"])},'
        f'"duration_std_s":{_written(fields["duration_std_s"])},{kind}"name":{_quoted(fields["name"])},'
        f'"stream":{"null" if stream is None else _quoted(stream)},'
        f'"waits_for":[{_quoted_list(waits_for) if waits_for else ""}]}}'
    )


def _quoted_list(names: tuple[str, ...]) -> str:
    return ",".join(map(_quoted, names))


def _canonical_gradient(gradient: "Gradient") -> str:
    touched = ""
    if gradient.touched is not None:
        rows = gradient.touched.model_dump(mode="json")
        touched = f',"touched":{json.dumps(rows, sort_keys=True, separators=(",", ":"))}'
    return (
        f'{{"dtype":{_quoted(gradient.dtype)},"name":{_quoted(gradient.name)},'
        f'"producer":{_quoted(gradient.producer)},"size_bytes":{gradient.size_bytes}{touched}}}'
    )


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
