"""Jobs worked out by hand, the words of findings, and what is refused."""

import json
from typing import Any

import pytest

import pace
from pace import InvalidJobProgram, InvalidOptions, JobProgram, OrderReport, check_order, parse_job_program


def call(group: str, kind: str = "all-reduce", **fields: Any) -> dict[str, Any]:
    """Return a collective of 4 bytes."""
    return {"op": kind, "group": group, "size_bytes": 4, "dtype": "float32", **fields}


def job(
    groups: dict[str, list[list[int]]], *programs: tuple[list[int], list[Any]], **group: Any
) -> JobProgram:
    """Return a job of groups and of ranks with one thread each."""
    document = {
        "groups": [{"name": name, "communicators": ranks, **group} for name, ranks in groups.items()],
        "programs": [
            {"ranks": ranks, "threads": [{"operations": operations}]} for ranks, operations in programs
        ],
    }
    return parse_job_program(json.dumps(document))


def only_finding(report: OrderReport) -> tuple[str, tuple[int, ...], str]:
    """Return kind, ranks and all words of a report's one finding."""
    (finding,) = report.findings
    assert not report.cannot_hang
    return finding.kind, finding.ranks, "\n".join((finding.title, *finding.lines))


ITEM = {"op": "synchronize"}


def test_equal_programs_cannot_hang() -> None:
    """A thousand ranks that do the same are one program."""
    report = check_order(job({"world": [list(range(1000))]}, (list(range(1000)), [call("world"), ITEM] * 50)))
    assert report.cannot_hang
    assert (report.num_ranks, report.num_programs, report.num_operations) == (1000, 1, 100_000)
    assert any("NCCL" in line for line in report.outside)


def test_two_groups_in_two_orders_and_synchronizations() -> None:
    """Each rank waits on its host in a group of one dimension for a rank that waits in the other."""
    shard = call("shard", "all-to-all", name="dispatch", wait="stream", stack=["model.py:3 in forward"])
    replicate = call("replicate", name="sum", wait="stream")
    programs = ([0], [shard, ITEM, replicate]), ([1], [replicate, ITEM, shard])
    groups = {"shard": [[0, 1]], "replicate": [[1, 0]]}
    report = check_order(job(groups, *programs))
    kind, ranks, words = only_finding(report)
    assert (kind, set(ranks)) == ("circle", {0, 1})
    for wait, following in zip(report.findings[0].waits, report.findings[0].waits[::-1], strict=True):
        assert wait.at is not None
        assert following.missing is not None
        assert (wait.at.rank, wait.at.number) == (wait.rank, 0)
        # It waits for the same call of the other rank, which comes behind the call in which that one waits.
        assert (following.missing.rank, following.missing.number) == (wait.waits_for, 2)
    assert (
        'rank 0 waits in all-to-all "dispatch" (number 1 of group "shard", 4 bytes, float32) for rank 1'
        in words
    )
    assert (
        'rank 1 waits in all-reduce "sum" (number 1 of group "replicate", 4 bytes, float32) for rank 0'
        in words
    )
    assert "waits at the synchronization with the device" in words
    assert "model.py:3 in forward" in words
    without = ([0], [shard, replicate]), ([1], [replicate, shard])
    assert not check_order(job(groups, *without)).cannot_hang, "the stream waits where the host did"
    asynchronous = [{**shard, "wait": "nobody"}, {**replicate, "wait": "nobody"}]
    assert check_order(job(groups, ([0], asynchronous), ([1], asynchronous[::-1]))).cannot_hang


def test_streams_in_launch_order() -> None:
    """Two groups in two orders pass side by side, but not from one queue of the device."""
    both = [call("a"), call("b")]
    crossed = job({"a": [[0, 1]], "b": [[0, 1]]}, ([0], both), ([1], both[::-1]))
    assert check_order(crossed).cannot_hang
    assert check_order(crossed, streams="launch-order").cannot_hang, "both start, and stay on the device"
    behind = [call("a"), call("a"), call("b")], [call("b"), call("b"), call("a")]
    held = job({"a": [[0, 1]], "b": [[0, 1]]}, ([0], [*behind[0], call("b")]), ([1], [*behind[1], call("a")]))
    assert check_order(held).cannot_hang
    kind, _, words = only_finding(check_order(held, streams="launch-order"))
    assert kind == "circle"
    assert "until then it cannot start" in words


def test_launch_slots() -> None:
    """A thread that finds its stream full waits, and does not come to what would empty it."""
    crossed = job(
        {"a": [[0, 1]], "b": [[0, 1]]},
        ([0], [call("a"), call("a"), call("b"), call("b")]),
        ([1], [call("b"), call("b"), call("a"), call("a")]),
    )
    assert check_order(crossed, launch_slots=2).cannot_hang
    assert not check_order(crossed, launch_slots=1).cannot_hang


def test_a_circle_of_classes_is_one_of_ranks() -> None:
    """Ranks that do the same are one in the proof, and themselves in the words."""
    groups = {"x": [[0, 1], [2, 3]], "y": [[0, 3], [1, 2]]}
    one, other = [call("x", wait="thread"), call("y")], [call("y", wait="thread"), call("x")]
    report = check_order(job(groups, ([0, 2], one), ([1, 3], other)))
    kind, ranks, _ = only_finding(report)
    assert (kind, sorted(ranks), report.num_programs) == ("circle", [0, 1, 2, 3], 2)


@pytest.mark.parametrize(
    ("second", "kind", "words"),
    [
        (call("w", "all-gather"), "kind", "rank 1 calls all-gather"),
        (call("w", "broadcast", root=1), "kind", "root 1"),
        (call("w", size_bytes=8), "size", "8 bytes"),
        (call("w", dtype="int8"), "dtype", "int8"),
    ],
)
def test_differences(second: dict[str, Any], kind: str, words: str) -> None:
    """The first operation that differs is named on both sides."""
    found, ranks, text = only_finding(
        check_order(job({"w": [[0, 1]]}, ([0], [call("w")] * 3), ([1], [call("w"), second, second])))
    )
    assert (found, ranks) == (kind, (0, 1))
    assert words in text
    assert 'number 2 of group "w"' in text


def test_unknown_sizes_agree() -> None:
    """What a program does not say does not differ."""
    silent = {"op": "all-reduce", "group": "w"}
    assert check_order(job({"w": [[0, 1]]}, ([0], [call("w")]), ([1], [silent]))).cannot_hang


def test_a_rank_that_ends_early() -> None:
    """The first operation that a rank does not call."""
    found, ranks, text = only_finding(
        check_order(job({"w": [[0, 1, 2]]}, ([0, 1], [call("w", name="loss")] * 3), ([2], [call("w")] * 2)))
    )
    assert (found, ranks) == ("count", (0, 2))
    assert 'rank 2 calls only 2 of the operations of group "w", and rank 0 calls more' in text
    assert 'all-reduce "loss" (number 3 of group "w"' in text


def test_sends_and_receives() -> None:
    """Two ranks that both receive first wait for ever; in a batch, or with even ranks first, they do not."""
    send, receive = ({"op": op, "group": "w", "size_bytes": 4, "wait": "thread"} for op in ("send", "recv"))

    def pair(first: list[Any], second: list[Any]) -> JobProgram:
        ends = ([{**each, "peer": peer} for each in row] for row, peer in ((first, 1), (second, 0)))
        return job({"w": [[0, 1]]}, *zip(([0], [1]), ends, strict=True))

    kind, _, words = only_finding(check_order(pair([receive, send], [receive, send])))
    assert kind == "circle"
    assert "rank 0 waits in recv (from rank 1" in words
    assert check_order(pair([send, receive], [receive, send])).cannot_hang
    batches = [
        [{"op": "batch", "operations": [{**receive, "peer": peer}, {**send, "peer": peer}]}]
        for peer in (1, 0)
    ]
    assert check_order(job({"w": [[0, 1]]}, ([0], batches[0]), ([1], batches[1]))).cannot_hang
    lonely = check_order(pair([send, send], [receive]))
    assert only_finding(lonely)[0] == "count"


def test_two_threads() -> None:
    """Threads have groups and streams of their own, or their order is up to chance."""

    def threads(*rows: list[Any]) -> JobProgram:
        named = [{"name": f"t{number}", "operations": row} for number, row in enumerate(rows)]
        groups = [{"name": name, "communicators": [[0, 1]]} for name in ("a", "b")]
        return parse_job_program(
            json.dumps({"groups": groups, "programs": [{"ranks": [0, 1], "threads": named}]})
        )

    own = [call("a", stream="s", wait="thread")], [call("b", stream="t", wait="thread")]
    assert check_order(threads(*own)).cannot_hang
    kind, ranks, words = only_finding(check_order(threads([call("a", stream="s")], [call("a", stream="t")])))
    assert (kind, ranks) == ("order", (0,))
    assert 'threads "t0" and "t1" of rank 0 share a group or a stream' in words
    waits = [{"op": "wait", "operation": "b"}, call("a", stream="s", name="a")]
    kind, ranks, words = only_finding(
        check_order(threads(waits, [{"op": "wait", "operation": "a"}, call("b", stream="t", name="b")]))
    )
    assert (kind, ranks) == ("circle", (0,))
    assert "waits for itself" in words
    with pytest.raises(
        InvalidJobProgram, match='also by thread "t0", and how much that is depends on chance'
    ):
        check_order(threads([call("a", stream="s")], [ITEM]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": [{"name": "w", "communicators": [[0, 1, 2]]}]}, "rank 2, which has no program"),
        ({"groups": [{"name": "w", "communicators": [[0, 0]]}]}, "has rank 0 twice"),
        ({"groups": [{"name": "v", "communicators": [[0, 1]]}]}, 'calls group "w": no such group'),
        ({"groups": [{"name": "w", "communicators": [[1]]}]}, 'rank 0 calls group "w", which it is not in'),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_refused_documents(change: dict[str, Any], message: str) -> None:
    """A document that breaks its own rules is refused with the place."""
    document = json.loads(job({"w": [[0, 1]]}, ([0, 1], [call("w")])).to_json()) | change
    with pytest.raises(InvalidJobProgram, match=message):
        parse_job_program(json.dumps(document))


def test_refused_waits_and_options() -> None:
    """A wait for nothing, and options that do not exist."""
    with pytest.raises(InvalidJobProgram, match='rank 0 waits for "x": no operation has that name'):
        check_order(job({"w": [[0]]}, ([0], [{"op": "wait", "operation": "x"}])))
    with pytest.raises(InvalidJobProgram, match='either an "operation" or a "group"'):
        job({"w": [[0]]}, ([0], [{"op": "wait"}]))
    with pytest.raises(InvalidOptions, match="launch_slots 0"):
        check_order(job({"w": [[0]]}, ([0], [])), launch_slots=0)
    with pytest.raises(InvalidOptions, match="side-by-side"):
        check_order(job({"w": [[0]]}, ([0], [])), streams="other")  # type: ignore[arg-type]
    with pytest.raises(InvalidJobProgram, match="a JobProgram is needed"):
        check_order(7)  # type: ignore[arg-type]


def test_documents_survive_a_round_trip() -> None:
    """What is written is read as the same."""
    program = job({"w": [[0, 1]]}, ([0, 1], [call("w", stack=["a.py:1 in f"]), ITEM]))
    assert pace.parse_job_program(program.to_json()) == program
