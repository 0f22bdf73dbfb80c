"""The traces of all ranks of a job: calls matched, clocks aligned, the slowest rank found."""

import json
import re
from itertools import chain
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Profile
from pace.errors import FormatError
from pace.formats.import_report import import_report, import_warnings, report_lines
from pace.formats.kineto import read_kineto
from pace.formats.reading import FormatWarning
from tests.pace.formats.kineto_features import make_event
from tests.pace.formats.traces import (
    ACCUMULATE,
    MAIN,
    NCCL,
    STREAM,
    Event,
    kineto_document,
    kineto_events,
    write_json,
)

# (name of an operator, when it is called, when its kernel runs): the host is ahead of the all-reduces.
_AHEAD = {
    "torch.distributed.ddp.reducer::copy_bucket_to_grad": (5600, 7700),
    "aten::_foreach_add_": (6000, 7750),
}


def _rank_events(*, early: bool) -> list[Event]:
    """Return a rank's events: its all-reduces start at 4,360 and 4,600, or 3,000 us later, and end as one.

    Compute of the backward pass ends at 5,529 on the device, and the update follows the all-reduces.
    """
    events = kineto_events(waiting_us=3000.0 if early else 0.0)
    moved = {}
    for event in events:
        origin = event.get("ts", 0) // 10_000 * 10_000
        if event["name"] in _AHEAD:
            event["ts"] = origin + _AHEAD[event["name"]][0]
            moved[event["args"]["External id"]] = (origin, *_AHEAD[event["name"]])
        elif event.get("tid") == NCCL and not early:
            event["ts"] += 3000
    for event in events:
        if event.get("args", {}).get("correlation") in moved:
            origin, called, runs = moved[event["args"]["correlation"]]
            event["ts"] = origin + (runs if event["tid"] == STREAM else called + 15)
    return events


def _write(folder: Path, *ranks: list[Event]) -> list[Path]:
    paths = []
    for number, events in enumerate(ranks):
        document = kineto_document(events, distributedInfo={"rank": number, "world_size": 2})
        paths.append(write_json(folder / f"rank{number}.json", document))
    return paths


def _expect_late_ranks(profile: Profile) -> None:
    """Rank 0 computes until 5,529 and waits for rank 1, which comes to the last call at 7,600."""
    found = profile.metadata
    assert found["rank"] == 1
    assert found["ranks_waited_s"] == pytest.approx([2071e-6, 0.0], abs=3e-6)
    assert found["late_ranks_s"] == pytest.approx(1035.5e-6, abs=3e-6)
    assert dict(profile.allreduce.model_dump()["samples"]) == pytest.approx({840: 71e-6, 1200: 91e-6})


def test_the_slowest_rank_is_the_one_that_waits_least(tmp_path: Path) -> None:
    """Both compute as long; the calls of rank 1 last 70 and 90 us, those of rank 0 3,000 more."""
    paths = _write(tmp_path, _rank_events(early=True), _rank_events(early=False))
    profile = read_kineto(paths)
    _expect_late_ranks(profile)
    assert any("the slowest is 1; they wait 1.04 ms" in line for line in report_lines(import_report(profile)))


def test_clocks_that_are_apart_are_aligned(tmp_path: Path) -> None:
    """A trace's clock starts with its first event, which here is 5 ms earlier on rank 1."""
    early = make_event("user_annotation", "before", MAIN, 995_000, 10)
    late = _rank_events(early=False)
    paths = _write(tmp_path, _rank_events(early=True), [late[0], early, *late[1:]])
    _expect_late_ranks(read_kineto(paths))


def test_ranks_that_recorded_other_steps_have_some_in_common(tmp_path: Path) -> None:
    """Rank 1 began one step later: steps are matched by number."""
    late = [event for event in _rank_events(early=False) if event.get("ts", 2e6) >= 1_010_000]
    profile = read_kineto(_write(tmp_path, _rank_events(early=True), late))
    assert profile.metadata["rank"] == 1
    assert profile.metadata["late_ranks_s"] == pytest.approx(1035.5e-6, abs=3e-6)
    assert dict(profile.allreduce.model_dump()["samples"]) == pytest.approx({840: 71.5e-6, 1200: 91.5e-6})


def test_ranks_that_issued_other_calls_are_not_compared(tmp_path: Path) -> None:
    """Rank 1 lacks a call in every step: nothing says which of the others met."""
    fewer = [event for event in _rank_events(early=False) if event["args"].get("In msg nelems") != 300]
    profile = read_kineto(_write(tmp_path, _rank_events(early=True), fewer))
    assert profile.metadata["late_ranks_s"] is None
    assert any("who waited for whom is not known" in line for line in report_lines(import_report(profile)))


def test_traces_of_one_rank_or_of_two_jobs_are_refused(tmp_path: Path) -> None:
    """Two files of rank 0; a job of four workers; one with another model."""
    paths = _write(tmp_path, _rank_events(early=True), _rank_events(early=False))
    with pytest.raises(FormatError, match=r"is of rank 0, as .*rank0.json is"):
        read_kineto([paths[0], paths[0]])
    four = kineto_document(_rank_events(early=False), distributedInfo={"rank": 1, "world_size": 4})
    with pytest.raises(FormatError, match=r"another job than .*: workers 4 and 2"):
        read_kineto([paths[0], write_json(tmp_path / "four.json", four)])
    events = _rank_events(early=False)
    for event in events:
        if event["name"] == ACCUMULATE:
            event["args"]["Input Dims"] = [[7]]
    (other,) = _write(tmp_path, events)
    with pytest.raises(FormatError, match=r"another job than .*: bytes of gradients"):
        read_kineto([paths[1], other])


def test_headroom_says_what_late_ranks_cost(tmp_path: Path) -> None:
    """A tenth of the step is a sentence. The slowest rank, whose time is shown, waits for nobody."""
    paths = _write(tmp_path, _rank_events(early=True), _rank_events(early=False))
    done = CliRunner().invoke(app, ["headroom", *map(str, paths), "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["time"]["late_ranks_s"] == pytest.approx(0, abs=3e-6)
    said = r"wait for late ranks during [1-9]\d?% of the step on average, the slowest rank during 0%"
    assert any(re.search(said, sentence) for sentence in answer["advice"])


def test_another_order_of_groups_is_a_warning(tmp_path: Path) -> None:
    """Two gathers of each step, of two groups, which rank 1 issues the other way round."""

    def with_gathers(events: list[Event], groups: tuple[str, str]) -> list[Event]:
        steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
        gathers = [
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "record_param_comms",
                "pid": step["pid"],
                "tid": MAIN,
                "ts": step["ts"] + 1 + 2 * place,
                "dur": 1,
                "args": {
                    "Collective name": "allgather",
                    "Process Group Name": group,
                    "Process Group Ranks": "[0, 1]",
                    "Group size": 2,
                },
            }
            for step in steps
            for place, group in enumerate(groups)
        ]
        return sorted([*events, *gathers], key=lambda event: event.get("ts", 0))

    same = _write(tmp_path, *(with_gathers(_rank_events(early=False), ("dp", "tp")) for _ in range(2)))
    assert not any("different orders" in line for line in import_warnings(read_kineto(same)))
    other = _write(
        tmp_path,
        with_gathers(_rank_events(early=False), ("dp", "tp")),
        with_gathers(_rank_events(early=False), ("tp", "dp")),
    )
    (told,) = (line for line in import_warnings(read_kineto(other)) if "different orders" in line)
    assert 'rank 0 issues allgather of group "dp" and rank 1 allgather of group "tp"' in told
    result = CliRunner().invoke(app, ["headroom", *map(str, other)])
    assert result.exit_code == 0, result.output
    assert "warning: ranks issue collectives in different orders, so the job can hang" in result.stdout


def _slower(events: list[Event]) -> list[Event]:
    """Return events of which each step begins 15 ms later after the one before."""
    return [
        event | {"ts": event["ts"] + 15_000 * ((event["ts"] - 1_000_000) // 10_000)}
        if "ts" in event
        else event
        for event in events
    ]


def _two_pairs(folder: Path) -> list[Path]:
    """Write the traces of ranks 0 and 2, and of 1 and 3, which sum gradients among themselves."""
    pairs = [_rank_events(early=True), _rank_events(early=False)]
    for event in chain(*pairs):
        event.get("args", {}).pop("Group size", None)
    paths = []
    for rank in range(4):
        members = [rank % 2, rank % 2 + 2]
        listed = [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 4, "ranks": [0, 1, 2, 3]},
            {"pg_name": str(1 + rank % 2), "pg_desc": "undefined", "pg_size": 2, "ranks": members},
        ]
        about = {"rank": rank, "world_size": 4, "backend": "gloo", "pg_config": listed}
        events = pairs[rank // 2] if rank % 2 == 0 else _slower(pairs[rank // 2])
        paths.append(write_json(folder / f"rank{rank}.json", kineto_document(events, distributedInfo=about)))
    return paths


def test_ranks_meet_in_the_groups_that_their_calls_allow(tmp_path: Path) -> None:
    """Of four ranks, two and two: a rank of one pair is done before a rank of the other begins."""
    profile = read_kineto(_two_pairs(tmp_path))
    assert profile.workers == 2
    assert dict(profile.allreduce.model_dump()["samples"]) == pytest.approx({840: 71e-6, 1200: 91e-6})
    assert profile.metadata["ranks_waited_s"] == pytest.approx([2071e-6, 2071e-6, 0, 0], abs=3e-6)


def test_ranks_that_cannot_have_met_are_doubted(tmp_path: Path) -> None:
    """Ranks 0 and 1 are of different pairs; one rank alone does not say in which group its calls were."""
    paths = _two_pairs(tmp_path)
    profile = read_kineto(paths[:2])
    assert profile.metadata["ranks_waited_s"] == []
    assert "a rank ended before another rank began, which is impossible" in profile.metadata["ranks_doubt"]
    with pytest.warns(FormatWarning) as told:
        assert read_kineto(paths[:1]).workers == 4
    assert any("also has process groups of 2 ranks" in str(warning.message) for warning in told)


def test_ranks_meet_in_the_group_that_their_calls_name(tmp_path: Path) -> None:
    """Ranks 1 and 3 sum their gradients among themselves, while 0 and 2 do: that is no one's waiting."""
    waits_us = {0: 0.0, 1: 30.0, 2: 10.0, 3: 40.0}
    paths = []
    for rank, waiting_us in waits_us.items():
        events = kineto_events(waiting_us=waiting_us)
        for event in events:
            if "Collective name" in event.get("args", {}):
                event["args"]["Process Group Ranks"] = str([rank % 2, rank % 2 + 2])
        about = {"rank": rank, "world_size": 4, "backend": "nccl"}
        paths.append(write_json(tmp_path / f"{rank}.json", kineto_document(events, distributedInfo=about)))
    both = read_kineto(paths)
    # Of each size, three calls of one pair and three of the other, which are 30 us longer.
    assert dict(both.allreduce.model_dump()["samples"]) == pytest.approx({840: 86e-6, 1200: 106e-6})
    assert both.workers == 2
    # One rank of each pair: nothing tells who waited.
    assert read_kineto(paths[:2]).metadata["ranks_waited_s"] == []


@pytest.mark.parametrize("field", ["Group size", "In msg nelems"])
def test_numbers_that_no_job_has_are_left_out(tmp_path: Path, field: str) -> None:
    """Listing so many ranks would take all memory, and no profile has so many bytes."""
    events = kineto_events()
    for event in events:
        if "Collective name" in event.get("args", {}):
            event["args"] |= {"Global rank start": 0, "Global rank stride": 1, field: 10**12 << 40}
    (path,) = _write(tmp_path, events)
    cost = AffineAllReduce(latency_s=1e-3, seconds_per_byte=1e-9)
    assert read_kineto([path], allreduce=cost).workers == 2


def _sum_something_else(events: list[Event], elements: int) -> None:
    """Add an all-reduce to each step, which the main thread issues after the backward pass."""
    described = {"Collective name": "allreduce", "In msg nelems": elements, "Group size": 2, "dtype": "Float"}
    for step in range(3):
        origin = 1_000_000 + 10_000 * step
        events += [
            make_event("cpu_op", "c10d::allreduce_", MAIN, origin + 7200, 20),
            make_event("kernel", "ncclDevKernel_AllReduce", NCCL, origin + 7210, 100, **described),
        ]


@pytest.mark.parametrize("elements", [1, 4 << 20])
def test_what_carries_no_gradient_is_moved_by_no_schedule(tmp_path: Path, elements: int) -> None:
    """A loss, or any other data, that is summed after the backward pass."""
    plain, summed = kineto_events(), kineto_events()
    _sum_something_else(summed, elements)
    (path,) = _write(tmp_path, plain)
    without = read_kineto([path])
    (path,) = _write(tmp_path, summed)
    profile = read_kineto([path])
    assert profile.metadata["job"] == without.metadata["job"]
    assert profile.metadata["recorded_allreduces"] == without.metadata["recorded_allreduces"]
    assert profile.metadata["recorded_allreduces_match"] is True
    assert profile.metadata["other_collectives"] == {"all_reduce_of_other_data": 3}
