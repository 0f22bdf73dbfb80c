"""Horovod timelines: costs, inferred profiles, and files that end too early."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pace.cli.main import app
from pace.errors import FormatError
from pace.formats.fit import fit_cost
from pace.formats.horovod_timeline import read_horovod_cost, read_horovod_profile
from pace.formats.reading import FormatWarning
from tests.pace.formats.traces import Event, horovod_events, write_json


def test_overlapping_calls_are_one_fused_all_reduce(tmp_path: Path) -> None:
    """Two samples an iteration: b and w together, c alone; waiting and copying are not on the wire."""
    fitted = fit_cost([write_json(tmp_path / "t.json", horovod_events(iterations=2))])
    assert fitted.workers == 2
    assert [size for size, _ in fitted.allreduce.samples] == [840, 840, 1200, 1200]
    assert [seconds for _, seconds in fitted.allreduce.samples] == pytest.approx([2e-4, 2e-4, 5e-4, 5e-4])


def test_the_inferred_profile_worked_out_by_hand(tmp_path: Path) -> None:
    """Steps between gradients: 500 and 1,500 us. The gap from 5,600 to 12,000 is 6,400 us.

    The first gradient's op takes (2 * 6,400 - 2,000) / 3 = 3,600 us of it, forward the other 2,800:
    half of the backward pass's 5,600 us, divided as that is.
    """
    profile = read_horovod_profile(write_json(tmp_path / "t.json", horovod_events()))
    assert {op.name: round(op.duration_s * 1e6, 6) for op in profile.ops} == {
        "bwd/b": 3600,
        "bwd/w": 500,
        "bwd/c": 1500,
        "fwd/c": 750,
        "fwd/w": 250,
        "fwd/b": 1800,
    }
    assert [(g.name, g.size_bytes, g.producer) for g in profile.gradients] == [
        ("b", 40, "bwd/b"),
        ("w", 800, "bwd/w"),
        ("c", 1200, "bwd/c"),
    ]
    assert profile.workers == 2
    assert profile.metadata["iterations"] == 3


def test_a_timeline_that_is_cut_off_is_read_with_a_warning(tmp_path: Path) -> None:
    """A job that was killed leaves no closing bracket: whole iterations before that count."""
    whole = json.dumps(horovod_events(iterations=5))
    path = tmp_path / "t.json"
    path.write_text(whole[: int(len(whole) * 0.95)], encoding="utf-8")
    with pytest.warns(FormatWarning, match=r"t.json: the document is cut off"):
        profile = read_horovod_profile(path)
    assert profile.metadata["iterations"] == 3
    with pytest.warns(FormatWarning):
        assert len(read_horovod_cost(path).samples) == 9


def test_a_fault_in_the_middle_is_not_taken_for_an_end(tmp_path: Path) -> None:
    """Only an end of the file that comes too early is accepted."""
    text = json.dumps(horovod_events()).replace("GLOO_ALLREDUCE", 'GLOO"ALLREDUCE', 1)
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match="near byte"):
        read_horovod_cost(path)


def test_tensors_that_are_not_reduced_every_time_are_left_out(tmp_path: Path) -> None:
    """A metric averaged once is no gradient."""
    events = horovod_events()
    once = [dict(event, pid=9) for event in events if event["pid"] == 3][:12]
    once[0] = once[0] | {"args": {"name": "allreduce.metric"}}
    with pytest.warns(FormatWarning, match=r"1 tensors are not reduced once in every iteration.*metric"):
        profile = read_horovod_profile(write_json(tmp_path / "t.json", events + once))
    assert [gradient.name for gradient in profile.gradients] == ["b", "w", "c"]


def test_tensors_that_are_reduced_several_times_are_left_out(tmp_path: Path) -> None:
    """Two calls of one name an iteration: the second iteration's first is the third, not the second."""
    expected = read_horovod_profile(write_json(tmp_path / "t.json", horovod_events()))
    metric = [dict(event, pid=9) for event in horovod_events() if event["pid"] == 3]
    metric[0] |= {"args": {"name": "allreduce.metric"}}
    again = [event | {"ts": event["ts"] + 1500} for event in metric if "ts" in event]
    events = [*horovod_events(), *sorted([*metric, *again], key=lambda event: event.get("ts", 0))]
    with pytest.warns(FormatWarning, match=r"1 tensors are not reduced once in every iteration.*metric"):
        profile = read_horovod_profile(write_json(tmp_path / "t.json", events))
    assert profile.ops == expected.ops
    assert profile.gradients == expected.gradients


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "no finished all-reduce"),
        ({"a": 1}, "no finished all-reduce"),
        ([7], "event 0: expected an object"),
        ([e | {"ts": None} if "ts" in e else e for e in horovod_events()], "ts is None"),
        ([e for e in horovod_events() if e["ph"] != "E"], "no finished all-reduce"),
        (
            [{k: v for k, v in e.items() if k != "args" or e["ph"] == "M"} for e in horovod_events()],
            "no dtype",
        ),
        (
            [
                e | {"args": {"dtype": "float9", "shape": "[1]"}} if e["ph"] == "E" else e
                for e in horovod_events()
            ],
            "unknown dtype 'float9'",
        ),
        (horovod_events(iterations=2), "2 complete iterations: at least 3"),
    ],
)
def test_what_is_no_timeline_is_refused(tmp_path: Path, document: object, reason: str) -> None:
    """The error names the event and the reason."""
    with pytest.raises(FormatError, match=reason):
        read_horovod_profile(write_json(tmp_path / "t.json", document))


def test_the_number_of_workers_can_be_given(tmp_path: Path) -> None:
    """With the response cache on from the start there are no ticks to count ranks by."""
    events = [event for event in horovod_events() if event["ph"] != "X"]
    path = write_json(tmp_path / "t.json", events)
    with pytest.raises(FormatError, match="give their number"):
        read_horovod_profile(path)
    assert read_horovod_profile(path, workers=16).workers == 16


def test_ranks_and_sizes_that_no_job_has_are_refused(tmp_path: Path) -> None:
    """Counting up to such a rank would take all memory; the refusal names the file."""
    text = json.dumps(horovod_events())
    (path := tmp_path / "t.json").write_text(text.replace('"name": "1"', '"name": "999999999"'))
    with pytest.raises(FormatError, match=r"event \d+: rank is '999999999'"):
        read_horovod_profile(path)
    path.write_text(text.replace("[300]", "[99999999999999999999]"))
    with pytest.raises(FormatError, match=r"t\.json: makes no valid profile: samples"):
        read_horovod_profile(path)


def test_hand_over_is_the_ranks_own(tmp_path: Path) -> None:
    """NEGOTIATE begins with the first rank: rank 0 came 400 us later, and computed until then."""
    early = read_horovod_profile(write_json(tmp_path / "e.json", horovod_events()))
    late = read_horovod_profile(write_json(tmp_path / "l.json", horovod_events(own_late_us=400)))
    assert late.timing.compute_s == pytest.approx(early.timing.compute_s + 400e-6)
    for profile in (early, late):
        replay = profile.metadata["replay"]
        assert replay["recorded_s"] == pytest.approx([10e-3, 10e-3])
        assert replay["error"] == pytest.approx(0, abs=0.02)
        assert profile.metadata["job"]["kind"] == "Horovod"


def _timeline_of_ranks(path: Path, late: Callable[[int], set[int]], wire_us: int = 10_000) -> Path:
    """Write 8 iterations of 1 s on 4 ranks: ready at 600 and 650 ms, late ranks 300 ms after."""
    timed: list[tuple[float, Event]] = []
    for iteration in range(8):
        free_us = 0.0
        for lane, ready_us in ((1, 600_000), (2, 650_000)):
            reports = sorted(
                (ready_us + 300_000 * (rank in late(iteration)) + rank, rank) for rank in range(4)
            )
            start_us = max(reports[-1][0] + 10, free_us)
            free_us = start_us + wire_us
            end: Event = {"ph": "E", "args": {"dtype": "float32", "shape": "[1000000]"}}
            events: list[tuple[float, Event]] = [
                (reports[0][0], {"ph": "B", "name": "NEGOTIATE_ALLREDUCE"}),
                *((moment, {"ph": "X", "name": str(rank), "dur": 0}) for moment, rank in reports),
                (reports[-1][0], {"ph": "E"}),
                (start_us, {"ph": "B", "name": "ALLREDUCE"}),
                (start_us, {"ph": "B", "name": "MPI_ALLREDUCE"}),
                (free_us, {"ph": "E"}),
                (free_us, end),
            ]
            timed += [(iteration * 1e6 + moment, event | {"pid": lane}) for moment, event in events]
    lanes = [{"name": "process_name", "ph": "M", "pid": lane, "args": {"name": f"{lane}"}} for lane in (1, 2)]
    in_order = sorted(timed, key=lambda each: each[0])
    return write_json(path, [*lanes, *(event | {"ts": moment} for moment, event in in_order)])


@pytest.mark.parametrize(
    ("late", "waited_ms", "slowest"),
    [
        ({0}, [0, 300, 300, 300], 0),
        ({2}, [300, 300, 0, 300], 2),
        ({0, 3}, [0, 300, 300, 0], 0),
        (set(), [0, 0, 0, 0], 0),
    ],
)
def test_every_rank_that_waits_is_seen(
    tmp_path: Path, late: set[int], waited_ms: list[float], slowest: int
) -> None:
    """The timeline notes when each rank was ready; durations are those of a rank that nobody waits for."""
    path = _timeline_of_ranks(tmp_path / "t.json", lambda _: late)
    profile = read_horovod_profile(path)
    found = profile.metadata
    assert [1e3 * seconds for seconds in found["ranks_waited_s"]] == pytest.approx(waited_ms, abs=0.1)
    assert found["late_ranks_s"] == pytest.approx(sum(waited_ms) / 4e3, abs=1e-4)
    assert found["rank"] == slowest
    # From the end of the last all-reduce to the slowest rank's next gradient, and between its gradients.
    assert profile.timing.compute_s == pytest.approx(0.99, abs=1e-3)
    answer = CliRunner().invoke(app, ["headroom", str(path)])
    assert answer.exit_code == 0, answer.output
    assert ("even out the ranks' work" in answer.stdout) == bool(late)
    assert ("already hidden" in answer.stdout) != bool(late)


def test_ranks_that_are_late_in_turn_are_seen(tmp_path: Path) -> None:
    """Each is late in every fourth iteration: three of four wait, and none is slower than the others."""
    found = read_horovod_profile(_timeline_of_ranks(tmp_path / "t.json", lambda iteration: {iteration % 4}))
    assert found.metadata["late_ranks_s"] == pytest.approx(0.225, abs=1e-4)
    assert found.metadata["rank"] == 0


def test_waiting_for_the_network_is_no_waiting_for_ranks(tmp_path: Path) -> None:
    """The first all-reduce lasts until 820 ms: a rank that is ready at 650 or 651 ms waits for it."""
    found = read_horovod_profile(_timeline_of_ranks(tmp_path / "t.json", lambda _: set(), 220_000))
    assert max(found.metadata["ranks_waited_s"]) == pytest.approx(0, abs=1e-4)


def test_ranks_that_are_not_noted_are_not_known_to_wait(tmp_path: Path) -> None:
    """With the response cache there are no ticks, or those of some ranks."""
    events = [event for event in horovod_events() if event.get("name") != "1"]
    found = read_horovod_profile(write_json(tmp_path / "t.json", events), workers=2).metadata
    assert found["late_ranks_s"] in (None, 0.0)
    found = read_horovod_profile(
        write_json(tmp_path / "t.json", [event for event in events if event["ph"] != "X"]), workers=2
    ).metadata
    assert (found["late_ranks_s"], found["ranks_waited_s"], found["rank"]) == (None, [], None)


def test_waiting_for_late_ranks_is_no_cost_of_sending(tmp_path: Path) -> None:
    """The last tensor, handed over at 4,000, waits until 5,000; 500 us on the wire, 100 to unpack."""
    profile = read_horovod_profile(write_json(tmp_path / "t.json", horovod_events()))
    replay = profile.metadata["replay"]
    # b and w wait 500 us as well, but under compute.
    assert replay["late_s"] == pytest.approx(1100e-6, abs=10e-6)
    assert dict(profile.allreduce.model_dump()["samples"]) == pytest.approx({840: 200e-6, 1200: 500e-6})
