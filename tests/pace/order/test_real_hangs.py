"""Published hangs carried out by real processes over Gloo: what hangs is refused, what is proved ends.

The programs follow meta-pytorch/torchcomms#3095 (a pass moves each rank's receive before its send),
meta-pytorch/torchrec#4149 (two groups in two orders, and hosts that wait between them), and
NVIDIA/Megatron-LM#1810 (one event lets two collectives of one group start in either order).
"""

import json
from pathlib import Path
from typing import Any

import pytest

from pace import FormatError, check_order, parse_job_program
from tests.pace.order.gloo_rank import ENVIRONMENT, carry_out_all
from tests.runtime.launch import run_ranks


def meet(op: str, group: str, *, wait: str = "nobody", **fields: Any) -> dict[str, Any]:
    """Return an operation of 8 bytes."""
    return {"op": op, "group": group, "size_bytes": 8, "dtype": "float32", "wait": wait, **fields}


def job(first: list[Any], second: list[Any]) -> dict[str, Any]:
    """Return a job of two ranks; every group has both."""
    names = dict.fromkeys(each["group"] for each in first)
    return {
        "groups": [{"name": name, "communicators": [[0, 1]], "backend": "gloo"} for name in names],
        "programs": [
            {"ranks": [rank], "threads": [{"operations": operations}]}
            for rank, operations in enumerate((first, second))
        ],
    }


SEND, RECEIVE = (
    [meet(op, "pipeline", wait="thread", peer=peer) for peer in (1, 0)] for op in ("send", "recv")
)
SHARD, REPLICATE = meet("all-to-all", "shard", name="dispatch"), meet("all-reduce", "replicate", name="sum")
DISPATCH, COMBINE = (
    meet("all-to-all", "experts", name="dispatch"),
    meet("all-gather", "experts", name="combine"),
)


def host_waits(*calls: dict[str, Any]) -> list[dict[str, Any]]:
    """Return calls with a wait of the host after each."""
    return [each for call in calls for each in (call, {"op": "wait", "group": call["group"]})]


HANGS = {
    "torchcomms": (job([RECEIVE[0], SEND[0]], [RECEIVE[1], SEND[1]]), "circle"),
    "torchrec": (job(host_waits(SHARD, REPLICATE), host_waits(REPLICATE, SHARD)), "circle"),
    "megatron": (job([DISPATCH, COMBINE], [COMBINE, DISPATCH]), "kind"),
}
ENDS = {
    "torchcomms, even ranks send first": job([SEND[0], RECEIVE[0]], [RECEIVE[1], SEND[1]]),
    "torchrec, hosts do not wait": job([SHARD, REPLICATE], [REPLICATE, SHARD]),
    "megatron, one order": job([DISPATCH, COMBINE], [DISPATCH, COMBINE]),
}


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which two processes have carried out every job."""
    folder = tmp_path_factory.mktemp("jobs")
    hanging = {name: document for name, (document, _) in HANGS.items()}
    (folder / "jobs.json").write_text(json.dumps({**ENDS, **hanging}))
    (folder / "hanging.json").write_text(json.dumps(list(hanging)))
    run_ranks(carry_out_all, 2, str(folder), backend="none", environment=ENVIRONMENT)
    return folder


def outcomes(folder: Path, name: str) -> list[str]:
    """Return how a job ended on each rank."""
    return [json.loads((folder / f"outcomes_{rank}.json").read_text())[name] for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", HANGS)
def test_what_hangs_is_refused(carried_out: Path, name: str) -> None:
    """The proof fails beforehand, and no rank ends within Gloo's time-out."""
    document, kind = HANGS[name]
    report = check_order(parse_job_program(json.dumps(document)))
    assert [finding.kind for finding in report.findings] == [kind]
    assert not report.cannot_hang
    assert all(outcome.startswith("hung") for outcome in outcomes(carried_out, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_what_is_proved_ends(carried_out: Path, name: str) -> None:
    """No false alarm."""
    assert check_order(parse_job_program(json.dumps(ENDS[name]))).cannot_hang
    assert outcomes(carried_out, name) == ["ended", "ended"]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", ".json"])
def test_the_flight_recorder_shows_the_hangs(carried_out: Path, ending: str) -> None:
    """The dumps of both ranks show the circle over two groups, and the difference within one."""
    dumps = [carried_out / f"dump_rank_{rank}{ending}" for rank in range(2)]
    with pytest.raises(FormatError, match=r"does not say which ranks are in group \d+.*--group"):
        check_order(dumps)
    report = check_order(dumps, groups={str(number): [(0, 1)] for number in range(1, 20)})
    assert [finding.kind for finding in report.findings] == ["circle", "kind"]
    circle, difference = report.findings
    assert circle.ranks in ((0, 1), (1, 0))
    assert any("rank 0 waits in all-to-all" in line for line in circle.lines)
    assert any("rank 1 waits in all-reduce" in line for line in circle.lines)
    assert "ranks call different operations" in difference.title
    if not ending:
        assert any("gloo_rank.py" in line for line in circle.lines)
