"""Ranks that issue other collectives, or the same ones in another order, are refused before they hang."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pace.documents.order.job_program import HostThread
from pace.errors import InvalidSchedule
from pace.order.inputs.fx_graphs import read_fx_graphs
from pace.order.inputs.job_groups import RankFile
from pace.runtime.inductor.fx_program import read_fx
from pace.runtime.inductor.rewrite import issued, prove_order
from tests.runtime.inductor.graphs import RANKS, absent_ranks, iteration

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
EVERY = range(RANKS)


@pytest.fixture
def group() -> Iterator[str]:
    """Name of a process group with ranks that do not exist."""
    with absent_ranks() as name:
        yield name


@pytest.fixture
def program(group: str) -> RankFile:
    """What each rank issues."""
    module, _ = iteration(group, layers=2)
    return issued(module.graph, read_fx(module.graph, "graph"))


def test_ranks_with_one_program_meet(program: RankFile) -> None:
    """Each collective is issued by all ranks."""
    prove_order("graph", EVERY, [program] * RANKS)


def test_ranks_with_another_order_are_refused(program: RankFile) -> None:
    """The last rank issues everything in the opposite order."""
    (thread,) = program.threads
    other = replace(program, threads=(HostThread(operations=thread.operations[::-1]),))
    with pytest.raises(InvalidSchedule, match="graph would hang: ") as refused:
        prove_order("graph", EVERY, [program] * (RANKS - 1) + [other])
    assert "\n" not in str(refused.value)


def test_ranks_that_do_not_compile_are_named(program: RankFile) -> None:
    """A group has four ranks, of which two compile."""
    with pytest.raises(InvalidSchedule, match="graph has collectives with rank 2, which does not compile it"):
        prove_order("graph", EVERY[:2], [program] * 2)


def test_a_graph_and_its_text_issue_the_same(group: str, tmp_path: Path) -> None:
    """The printed graph is read as the one in memory is, except for the names of groups and of waits."""
    module, _ = iteration(group, layers=2)
    in_memory = issued(module.graph, read_fx(module.graph, "graph")).threads[0]
    text = module.print_readable(print_output=False)
    file = tmp_path / "graph.py"
    file.write_text(text)
    printed = read_fx_graphs([file]).programs[0].threads[0]
    assert [(call.op, call.name, call.size_bytes, call.dtype) for call in in_memory.meetings()] == [
        (call.op, call.name, call.size_bytes, call.dtype) for call in printed.meetings()
    ]
