"""Dumps of the flight recorder in the documented format, and what is refused."""

import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from pace import FormatError, check_order


def entry(record: int, group: str, number: int, name: str = "all_reduce", **fields: Any) -> dict[str, Any]:
    """Return an entry as NCCL's process group records it."""
    made = {
        "record_id": record,
        "pg_id": 0,
        "process_group": (group, "undefined"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[3, 4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
    }
    return made | fields


def dump(folder: Path, rank: int, *entries: dict[str, Any], groups: dict[str, str] | None = None) -> Path:
    """Write a rank's dump, as pickle or JSON in turns."""
    config = {
        name: {"name": name, "desc": "undefined", "ranks": ranks}
        for name, ranks in (groups or {"a": "[0, 1]", "b": "[0, 1]"}).items()
    }
    content = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(entries)}
    path = folder / f"trace_rank_{rank}"
    path.write_bytes(json.dumps(content).encode() if rank % 2 else pickle.dumps(content))
    return path


def test_equal_records(tmp_path: Path) -> None:
    """Buffers that overflowed at different places begin at the first operation that all still have."""
    first = dump(tmp_path, 0, *(entry(number, "a", number) for number in range(5, 10)))
    second = dump(tmp_path, 1, *(entry(number, "a", number) for number in range(3, 10)))
    report = check_order([first, second])
    assert report.cannot_hang
    assert report.num_operations == 10
    assert "sends, receives" in report.outside[0]


def test_a_rank_that_does_not_come(tmp_path: Path) -> None:
    """The rank that lacks an operation, and the stack of one that called it."""
    first = dump(tmp_path, 0, entry(0, "a", 1, state="completed"), entry(1, "a", 2))
    second = dump(tmp_path, 1, entry(0, "a", 1, state="completed"))
    (finding,) = check_order([first, second]).findings
    assert (finding.kind, finding.ranks) == ("count", (0, 1))
    assert 'rank 1 calls only 1 of the operations of group "a"' in finding.title
    assert any("train.py:7 in step" in line for line in finding.lines)


def test_a_rank_that_was_dumped_earlier(tmp_path: Path) -> None:
    """What has completed was called by all, whatever their dumps say."""
    first = dump(tmp_path, 0, entry(0, "a", 1, state="completed"), entry(1, "a", 2, state="completed"))
    second = dump(tmp_path, 1, entry(0, "a", 1, state="completed"))
    assert check_order([first, second]).cannot_hang


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"profiling_name": "nccl:broadcast"}, "kind"),
        ({"input_sizes": [[3, 5]]}, "size"),
        ({"input_dtypes": ["Half"]}, "dtype"),
    ],
)
def test_differences(tmp_path: Path, change: dict[str, Any], kind: str) -> None:
    """As the analyzer of PyTorch tells them apart."""
    first = dump(tmp_path, 0, entry(0, "a", 1), entry(1, "a", 2))
    second = dump(tmp_path, 1, entry(0, "a", 1), entry(1, "a", 2, **change))
    assert [finding.kind for finding in check_order([first, second]).findings] == [kind]


def test_a_circle_over_two_groups(tmp_path: Path) -> None:
    """Each rank has called what the other lacks."""
    first = dump(tmp_path, 0, entry(0, "a", 1))
    second = dump(tmp_path, 1, entry(0, "b", 1))
    assert [finding.kind for finding in check_order([first, second]).findings] == ["circle"]


def test_refusals(tmp_path: Path) -> None:
    """One clear line each."""
    first = dump(tmp_path, 0, entry(0, "a", 1))
    with pytest.raises(FormatError, match="group a has rank 1, whose dump is missing"):
        check_order([first])
    other = dump(tmp_path, 1, entry(0, "a", 1), groups={"a": "[1, 2]"})
    with pytest.raises(FormatError, match="created their groups in different orders"):
        check_order([first, other])
    lost = dump(tmp_path, 1, entry(7, "b", 8), entry(8, "b", 9))
    with pytest.raises(FormatError, match="none of its calls in group a"):
        check_order([first, lost])
    gap = dump(tmp_path, 1, entry(0, "a", 1), entry(1, "a", 3))
    with pytest.raises(FormatError, match="not numbered one after another"):
        check_order([first, gap])
    endless = dump(tmp_path, 1, entry(0, "a", 1) | {"record_id": math.inf})
    with pytest.raises(FormatError, match=r"no dump of PyTorch's flight recorder .*OverflowError"):
        check_order([first, endless])
    nameless = tmp_path / "dump"
    nameless.write_bytes(first.read_bytes())
    with pytest.raises(FormatError, match="ends with the rank"):
        check_order([nameless])


class Hostile:
    """What would run code if it were read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("touched"),))


def test_a_pickle_runs_no_code(tmp_path: Path) -> None:
    """A dump may come from anywhere."""
    path = tmp_path / "trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": Hostile(), "pg_config": {}}))
    with pytest.raises(FormatError, match="which no dump does"):
        check_order([path])
    assert not Path("touched").exists()
