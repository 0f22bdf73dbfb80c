"""FX graphs of real functional collectives, one text for each rank."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from pace import FormatError, InvalidJobProgram, check_order
from pace.order.inputs.fx_graphs import read_fx_graphs

functional: Any = functional_collectives  # its groups may be names, which are no type of their own

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.usefixtures("world"),
]


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    """Process groups whose collectives are traced and never run: one of four ranks, one of two."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    dist.new_group([0, 1])
    yield
    dist.destroy_process_group()


def written(folder: Path, rank: int, function: Callable[..., Any], width: int = 4) -> Path:
    """Write the graph of a function as torch.compile's debug folder has it."""
    graph = make_fx(function)(torch.ones(width, 2), torch.ones(3))
    text = graph.print_readable(print_output=False).replace("class f(", "class <lambda>(")
    file = folder / f"rank_{rank}_fx_graph_readable.py"
    file.write_text(text)
    return file


def _sharded(x: torch.Tensor, y: torch.Tensor) -> Any:
    whole = functional.all_gather_tensor(x, 0, "0")
    summed = functional.all_reduce(y, "sum", "0")
    part = functional.reduce_scatter_tensor(whole * 2, "sum", 0, "0")
    several = functional.all_reduce_coalesced([x, y], "avg", "0")
    return part.sum() + summed.sum() + several[0].sum() + several[1].sum()


def _swapped(first: str, second: str) -> Callable[..., Any]:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        one = functional.all_reduce(x, "sum", first)
        total = one.sum()  # waits
        other = functional.all_reduce(x, "sum", second)
        return total + other.sum() + y.sum()

    return f


def test_collectives_waits_and_bytes(tmp_path: Path) -> None:
    """One graph is that of all ranks of its largest group."""
    file = written(tmp_path, 0, _sharded)
    job = read_fx_graphs([file])
    (program,) = job.programs
    assert program.ranks == (0, 1, 2, 3)
    calls = list(program.threads[0].meetings())
    assert [(call.op, call.size_bytes, call.dtype) for call in calls] == [
        ("all-gather", 32, "float32"),
        ("all-reduce", 12, "float32"),
        ("reduce-scatter", 128, "float32"),
        ("all-reduce", 44, "float32"),
    ]
    waits = [op.operation for op in program.threads[0].operations if op.op == "wait"]
    assert set(waits) == {call.name for call in calls}
    assert check_order(file).cannot_hang
    assert check_order([file] * 4).cannot_hang


def test_ranks_whose_graphs_differ(tmp_path: Path) -> None:
    """Other sizes in one rank's graph are named, and so is a collective that it has dropped."""
    same, wider = written(tmp_path, 0, _sharded), written(tmp_path, 1, _sharded, width=8)
    (finding,) = check_order([same, wider, same, same]).findings
    assert finding.kind == "size"
    text = same.read_text().splitlines()
    dropped = tmp_path / "dropped.py"
    dropped.write_text("\n".join(line for line in text if "all_reduce_coalesced" not in line))
    (finding,) = check_order([same, same, dropped, same]).findings
    assert (finding.kind, finding.ranks) == ("count", (0, 2))


def test_a_pass_that_reorders_on_one_rank(tmp_path: Path) -> None:
    """Two groups in two orders: each rank waits in one of them before it starts the other."""
    one, other = written(tmp_path, 0, _swapped("0", "1")), written(tmp_path, 1, _swapped("1", "0"))
    (finding,) = check_order([one, other]).findings
    assert (finding.kind, set(finding.ranks)) == ("circle", {0, 1})
    assert check_order([one, one]).cannot_hang


def test_graphs_of_too_few_ranks(tmp_path: Path) -> None:
    """A gather says how many ranks its group has."""
    file = written(tmp_path, 0, _sharded)
    with pytest.raises(InvalidJobProgram, match="give the files of all ranks"):
        check_order([file, file])


def test_forwards_of_other_functions_are_passed_over(tmp_path: Path) -> None:
    """Files that reproduce a graph have the functions that it passes to operators before it."""
    graph, file = written(tmp_path, 0, _sharded), tmp_path / "repro.py"
    before = (
        "import torch\nclass Inner(torch.nn.Module):\n    def forward(self, *args):\n        return args\n"
    )
    file.write_text(before + graph.read_text())
    assert read_fx_graphs([file]).programs[0].threads == read_fx_graphs([graph]).programs[0].threads


def test_what_is_no_graph(tmp_path: Path) -> None:
    """Named in one line, and never run."""
    file = tmp_path / "graph.py"
    for text, words in (
        ("import torch\ndef forward(self, x):\n    a = (", "no readable FX graph"),
        ("import torch\nclass A:\n    'def forward(self'", "it has no forward"),
        (
            "import torch\ndef forward(self, x):\n    a = torch.ops._c10d_functional.all_reduce.default(x)",
            "without a process group",
        ),
        (
            "import torch\nclass A:\n    def forward(self, x):\n        return x",
            "no graph calls a collective",
        ),
        (
            "import torch\n" + "class A:\n    def forward(self, x):\n"
            "        a = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '0')\n" * 2,
            "forwards on lines 3, 6 call collectives",
        ),
    ):
        file.write_text(text)
        with pytest.raises(FormatError, match=words):
            check_order(file)
