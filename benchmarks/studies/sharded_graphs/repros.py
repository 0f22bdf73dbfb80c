"""The graphs of the overlap simulator in meta-pytorch/autoparallel, traced under fake tensors on the CPU.

A graph is a file ``repro_NAME.py`` that defines a module, its inputs and its process groups. Its text is
changed before it runs: devices become the CPU, kernels of Triton become copies, histograms are of floats, as
the CPU has no others, and no environment is set.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.distributed_c10d import GroupName
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.distributed.fake_pg import FakeStore

_CHANGES = (
    (re.compile(r"^os\.environ\[.*$", re.M), ""),
    (re.compile(r"^import triton.*$", re.M), ""),
    (re.compile(r"\(type='cuda'(, index=\d+)?\)"), "(type='cpu')"),
    (re.compile(r"torch\.ops\.higher_order\.triton_kernel_wrapper_functional\("), "_copied("),
    (re.compile(r"torch\.ops\.aten\.histc\.default\("), "_counted("),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repro:
    """A graph that can be traced.

    Attributes
    ----------
    group_sizes
        Ranks of each process group.
    table
        The table of collective times beside the file.
    table_group
        Which group of the table each process group is.
    """

    module: torch.nn.Module
    inputs: Any
    group_sizes: Mapping[str, int]
    table: Path
    table_group: Mapping[str, str]

    def trace(self) -> fx.GraphModule:
        """Return the graph; process groups must exist."""
        with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()):
            reader = _Inputs()
            self.inputs(reader)
            return make_fx(self.module, tracing_mode="fake")(*reader.args)


def read_repro(path: Path) -> Repro:
    """Run a graph's file."""
    import torch._higher_order_ops.triton_kernel_wrap
    import torch._inductor.inductor_prims  # noqa: F401 - defines ops

    text = path.read_text(encoding="utf-8")
    for pattern, replacement in _CHANGES:
        text = pattern.sub(replacement, text)
    space: dict[str, Any] = {
        "__name__": path.stem,
        "_copied": _copied,
        "_counted": _counted,
        "triton": SimpleNamespace(jit=lambda function: function),
        "tl": SimpleNamespace(constexpr=None),
    }
    exec(compile(text, str(path), "exec"), space)
    groups = {name: info["size"] for name, info in space["get_pg_config"]().items()}
    mapping = space.get("get_colls_group_mapping", lambda: {name: name for name in groups})
    return Repro(
        module=space["Repro"](),
        inputs=space["load_args"],
        group_sizes=groups,
        table=path.with_name(space["get_colls_estimations_file"]()),
        table_group=mapping(),
    )


@contextmanager
def fake_groups(sizes: Mapping[str, int]) -> Iterator[None]:
    """Be rank 0 of process groups with these names, of which no other rank exists."""
    world = max(sizes.values())
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    whole = dist.group.WORLD
    groups: dict[str, Any] = {
        name: whole if size == world else dist.new_group(list(range(size))) for name, size in sizes.items()
    }
    torch._C._distributed_c10d._unregister_all_process_groups()
    for name, group in groups.items():
        torch._C._distributed_c10d._register_process_group(GroupName(name), group)
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Inputs:
    """Stands for the reader that gives a graph its inputs: it makes tensors without content."""

    def __init__(self) -> None:
        self.args: list[Any] = []

    def storage(self, *_args: Any, **_kwargs: Any) -> None:
        """Ignore what a tensor is stored in."""

    def tensor(self, _storage: None, shape: Any, stride: Any = None, **options: Any) -> None:
        """Add a tensor."""
        dtype = options.get("dtype") or torch.float32
        self.args.append(
            torch.empty(shape, dtype=dtype)
            if stride is None
            else torch.empty_strided(shape, stride, dtype=dtype)
        )

    def symint(self, value: int) -> None:
        """Add a whole number."""
        self.args.append(value)


def _copied(*, kwargs: Mapping[str, Any], tensors_to_clone: list[str], **_others: Any) -> dict[str, Any]:
    """Stand for a kernel of Triton: return copies of what it writes."""
    return {name: kwargs[name].clone() for name in tensors_to_clone}


def _counted(values: torch.Tensor, *limits: Any) -> torch.Tensor:
    counts: torch.Tensor = torch.ops.aten.histc.default(values.float(), *limits)
    return counts.to(values.dtype)
