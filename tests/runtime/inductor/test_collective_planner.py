"""Models that Inductor compiles with planned collectives train to the bits of those without."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.inductor.jobs import (
    compare,
    error_of,
    train_in_turn,
    train_on_batches_of_any_size,
    train_on_mesh,
)
from tests.runtime.launch import load_for_all, run_ranks
from tests.runtime.rank_pool import RankPool

# Each rank compiles up to ten graphs, which takes minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """Load Inductor, and what it makes for the first graph, once for all ranks."""
    load_for_all("tests.runtime.inductor.compiled_once", "pace.runtime.inductor")


@pytest.fixture(scope="module")
def pair() -> Iterator[RankPool]:
    """Two ranks."""
    with RankPool(2, timeout_s=400.0) as ranks:
        yield ranks


def check(found: Sequence[Any], ranks: int) -> None:
    """Check what ``compare`` found on all ranks."""
    assert len(found) == ranks
    for of_rank in found:
        for name, seen in of_rank.items():
            assert seen["is equal"], name
            assert seen["violations"] == [[], []], name
            assert seen["schedules"] == found[0][name]["schedules"], name
            assert seen["order in code"] == seen["planned order"], name
        assert len(of_rank["late"]["order in code"]) < of_rank["late"]["collectives"]


def test_two_ranks_train_to_the_same_bits(pair: RankPool, tmp_path: Path) -> None:
    """With and without buckets, with plans found in a folder, and with measured times."""
    found = pair.results(compare, str(tmp_path))
    check(found, 2)
    assert found[0]["kept"] == found[0]["late"]
    assert len(found[0]["wide"]["order in code"]) == found[0]["wide"]["collectives"]
    forward, backward = sorted(tmp_path.glob("*.schedule.json"))
    for suffix in (".schedule.json", ".graph.json"):
        names = [Path(str(each).removesuffix(".schedule.json") + suffix) for each in (forward, backward)]
        texts = [each.read_bytes() for each in names]
        for name, text in zip(names, reversed(texts), strict=True):
            name.write_bytes(text)
    again = pair.results(compare, str(tmp_path), ("kept",))
    assert again[0]["kept"] == found[0]["late"], "plans of other graphs were followed"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (
            "other model",
            'graph 0 of rank 1 differs from that of rank 0: it has node "sigmoid" (aten.sigmoid.default of ',
        ),
        ("small memory", "a memory budget of 3,000 bytes is too small"),
        ("no cost", "InvalidOptions: costs has no all-gather, which graph 0 has: add it"),
        (
            "other options",
            "InvalidOptions: the arguments differ between ranks: memory_bytes is 1048576 on rank 1 and None",
        ),
        ("bad option", "InvalidOptions: memory_bytes is 0; a whole number of at least 1 is needed"),
        ("bad folder", "InvalidOptions: plan_folder is of type int; the path of a folder is needed"),
        ("other pass", "InvalidUse: torch._inductor.config.bucket_all_gathers_fx moves collectives"),
    ],
)
def test_jobs_that_cannot_be_planned_end_on_all_ranks(pair: RankPool, case: str, expected: str) -> None:
    """In one line each, so that no rank waits for another."""
    found = pair.run(error_of, case)
    for text in found:
        assert expected in text
        assert "\n" not in text


def test_a_rank_that_compiles_alone_is_told_so(pair: RankPool) -> None:
    """Within the time-out, in one line that names who did not come."""
    others, alone = pair.run(error_of, "one rank compiles")
    assert others == "no error"
    assert alone.startswith("CommunicationFailed: the ranks did not all reach graph 0 within 2 s (")
    assert "rank 0" in alone
    assert "\n" not in alone
    assert "give them batches of the same shapes" in alone


def test_two_models_are_compiled_twice(pair: RankPool) -> None:
    """One planner plans both, and again for the memory of larger batches."""
    for is_equal, input_bytes in pair.run(train_in_turn):
        assert is_equal
        assert len(input_bytes) == 8
        assert max(input_bytes[:4]) < max(input_bytes[4:])


def test_collectives_of_any_size_are_planned(pair: RankPool) -> None:
    """A gathered batch has a size that is known while the graph runs; graphs are compiled once."""
    for is_equal, num_planned in pair.results(train_on_batches_of_any_size):
        assert is_equal
        assert num_planned == 2


def test_four_ranks_train_to_the_same_bits(tmp_path: Path) -> None:
    """In one group, and on a mesh, where ranks have other groups."""
    with RankPool(4, timeout_s=400.0) as ranks:
        check(ranks.run(compare, str(tmp_path), ("late",)), 4)
        on_mesh = ranks.run(train_on_mesh)
    for of_rank in on_mesh:
        assert of_rank["is equal"]
        assert of_rank["schedules"] == on_mesh[0]["schedules"]


def _generate(rank: int, _size: int, folder: str) -> tuple[dict[str, Any], bool]:
    found = compare(rank, folder, ("late",), generate=True)
    return found, train_on_batches_of_any_size(rank, generate=True)[0]


def test_generated_code_trains_to_the_same_bits(tmp_path: Path) -> None:
    """With the C++ code that Inductor writes and compiles, also for batches of any size."""
    # In new processes: what Inductor once left to torch, it leaves to torch for as long as a process lives.
    found, of_any_size = zip(*run_ranks(_generate, 2, str(tmp_path), timeout_s=800.0), strict=True)
    check(found, 2)
    assert all(of_any_size)
    assert all(of_rank["late"]["is generated"] for of_rank in found)
