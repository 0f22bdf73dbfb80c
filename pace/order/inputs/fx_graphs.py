"""Job programs from FX graphs, one file for each rank, as ``torch.compile`` writes them in its debug folder.

With ``TORCH_COMPILE_DEBUG=1`` these are ``fx_graph_readable.py`` (before Inductor's passes) and
``fx_graph_transformed.py`` (after them); ``GraphModule.print_readable`` prints the same. The text is Python:
it is parsed and never run.
"""

import ast
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pace.documents.order.job_program import (
    CollectiveKind,
    EnqueuedCollective,
    EnqueuedOperation,
    EnqueuedWait,
    HostThread,
    JobProgram,
    Synchronization,
)
from pace.documents.profile import ELEMENT_BYTES, DType
from pace.errors import FormatError
from pace.formats.reading import open_binary
from pace.order.inputs.job_groups import GivenGroups, RankFile, in_order_of_ranks, job_of

MOST_BYTES = 1 << 28
_KINDS: dict[str, CollectiveKind] = {
    "all_reduce": "all-reduce",
    "all_reduce_coalesced": "all-reduce",
    "all_gather_into_tensor": "all-gather",
    "all_gather_into_tensor_coalesced": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "all_to_all_single": "all-to-all",
    "broadcast": "broadcast",
}
_TYPES: dict[str, DType] = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "b8": "bool",
}
_FORM = re.compile(r"([a-z]+\d+)\[([\d, ]*)\]")


def functional_call(
    op: str,
    group: str,
    *,
    name: str,
    size_bytes: int | None,
    dtype: DType | None,
    stack: tuple[str, ...] = (),
) -> EnqueuedCollective:
    """Return the call of a functional collective; `op` is its name in ``torch.ops._c10d_functional``.

    Ranks may send different bytes in an all-to-all, so those are not compared.
    """
    kind = _KINDS.get(op.removesuffix("_").removesuffix("_out"), "other")
    return EnqueuedCollective(
        op=kind,
        group=group,
        name=name,
        size_bytes=None if kind in ("all-to-all", "other") else size_bytes,
        dtype=dtype,
        stack=stack,
    )


@dataclass(slots=True)
class _Reader:
    path: Path
    forms: dict[str, str] = field(default_factory=dict)
    calls_of: dict[str, list[str]] = field(default_factory=dict)
    operations: list[EnqueuedOperation] = field(default_factory=list)
    sizes: dict[str, int | None] = field(default_factory=dict)


def is_fx_graph(head: bytes) -> bool:
    """Return whether a file that begins like this is the text of an FX graph."""
    return b"def forward(self" in head and b"torch" in head


def read_fx_graphs(paths: Sequence[str | Path], *, groups: GivenGroups | None = None) -> JobProgram:
    """Read the graphs of all ranks (``in_order_of_ranks``); one graph is that of all ranks.

    Raises
    ------
    FormatError
        If a file is no FX graph.
    InvalidJobProgram
        If the graphs do not say which ranks are in a group.
    """
    files = {rank: _read(path) for rank, path in enumerate(in_order_of_ranks(paths))}
    if not any(thread.operations for file in files.values() for thread in file.threads):
        raise FormatError(paths[0], "no graph calls a collective (torch.ops._c10d_functional)")
    return job_of("the compiled graphs", files, groups or {})


def _read(path: Path) -> RankFile:
    with open_binary(path) as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise FormatError(path, f"a graph of more than {MOST_BYTES:,} bytes is not read")
    try:
        source = text.decode().replace("class <lambda>(", "class Graph(")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # kernels of other languages have other escapes
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as fault:
        raise FormatError(path, f"this is no readable FX graph: {fault}") from None
    forward = _forward(path, tree)
    reader = _Reader(path)
    for argument in forward.args.args:
        if isinstance(argument.annotation, ast.Constant):
            reader.forms[argument.arg] = str(argument.annotation.value)
    lines = source.splitlines()
    for statement in _statements(forward.body):
        _take(reader, statement, lines)
    return RankFile(
        threads=(HostThread(operations=tuple(reader.operations)),), group_sizes=dict(reader.sizes)
    )


def _forward(path: Path, tree: ast.Module) -> ast.FunctionDef:
    """Return the forward of the graph; others are those of functions that it passes to operators."""
    forwards = [
        each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == "forward"
    ]
    if not forwards:
        raise FormatError(path, "this is no readable FX graph: it has no forward")
    calling = [each for each in forwards if _calls_collectives(each)]
    if len(calling) > 1:
        lines = ", ".join(str(each.lineno) for each in calling)
        raise FormatError(
            path, f"forwards on lines {lines} call collectives: their order is not known. Give one at a time"
        )
    return calling[0] if calling else max(forwards, key=lambda each: len(each.body))


def _calls_collectives(forward: ast.FunctionDef) -> bool:
    return any(
        isinstance(statement.value, ast.Call)
        and re.match(r"torch\.ops\._?c10d_functional\.", ast.unparse(statement.value.func))
        for statement in _statements(forward.body)
    )


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.Assign | ast.AnnAssign]:
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            yield statement


def _take(reader: _Reader, statement: ast.Assign | ast.AnnAssign, lines: Sequence[str]) -> None:
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    value = statement.value
    assert value is not None
    name = target.id if isinstance(target, ast.Name) else ""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.annotation, ast.Constant):
        reader.forms[name] = str(statement.annotation.value)
    if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name):
        reader.calls_of[name] = reader.calls_of.get(value.value.id, [])
        return
    if not isinstance(value, ast.Call):
        return
    called = ast.unparse(value.func)
    operator = re.fullmatch(r"torch\.ops\.(\w+)\.(\w+)(?:\.\w+)?", called)
    if operator is None:
        if called == "operator.getitem" and value.args and isinstance(value.args[0], ast.Name):
            reader.calls_of[name] = reader.calls_of.get(value.args[0].id, [])
        return
    space, op = operator.groups()
    if space in ("_c10d_functional", "c10d_functional"):
        if op == "wait_tensor":
            for waited in reader.calls_of.get(_argument_name(value), []):
                reader.operations.append(EnqueuedWait(op="wait", operation=waited, stream="default"))
        else:
            _call(reader, name, op, value, _where(lines, statement.lineno))
    elif op in ("_local_scalar_dense", "item"):
        reader.operations.append(Synchronization(op="synchronize", stream="default", name=name or op))


def _call(reader: _Reader, name: str, op: str, call: ast.Call, stack: tuple[str, ...]) -> None:
    texts = [
        (each.value, place)
        for place, each in enumerate(call.args)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    if not texts:
        raise FormatError(reader.path, f'"{name}" calls {op} without a process group', f"line {call.lineno}")
    group, place = str(texts[-1][0]), texts[-1][1]  # a reduction such as "sum" comes before it
    size: int | None = None
    before = call.args[place - 1] if place else None
    if op.startswith(("all_gather", "reduce_scatter")) and isinstance(before, ast.Constant):
        size = before.value if isinstance(before.value, int) else None
    known = reader.sizes.get(group)
    reader.sizes[group] = known if size is None else size
    size_bytes, dtype = _bytes_of(reader, call.args[0])
    reader.calls_of[name] = [name]
    reader.operations.append(
        functional_call(op, group, name=name, size_bytes=size_bytes, dtype=dtype, stack=stack)
    )


def _argument_name(call: ast.Call) -> str:
    return call.args[0].id if call.args and isinstance(call.args[0], ast.Name) else ""


def _bytes_of(reader: _Reader, tensors: ast.expr) -> tuple[int | None, DType | None]:
    """Return the bytes and the type of a tensor or of a list of them, where the text says both."""
    names = tensors.elts if isinstance(tensors, ast.List | ast.Tuple) else [tensors]
    total, types = 0, set()
    for each in names:
        form = _FORM.match(reader.forms.get(each.id, "")) if isinstance(each, ast.Name) else None
        if form is None or form[1] not in _TYPES:
            return None, None
        types.add(_TYPES[form[1]])
        total += ELEMENT_BYTES[_TYPES[form[1]]] * math.prod(int(n) for n in form[2].split(",") if n.strip())
    return total, types.pop() if len(types) == 1 else None


def _where(lines: Sequence[str], number: int) -> tuple[str, ...]:
    """Return the place in the user's code that the comment above a line names."""
    for line in reversed(lines[max(0, number - 8) : number - 1]):
        stripped = line.strip()
        if stripped.startswith("# File: "):
            found = re.match(r"# File: (\S+) in (\w+)", stripped)
            return (f"{found[1]} in {found[2]}",) if found else ()
        if stripped and not stripped.startswith("#"):
            return ()
    return ()
