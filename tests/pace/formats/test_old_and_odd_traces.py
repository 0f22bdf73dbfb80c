"""Kineto traces that are whole, but written otherwise than today's profiler writes them."""

import json
from pathlib import Path

import pytest

from pace.errors import FormatError
from pace.formats.any_format import read_any
from pace.formats.kineto import read_kineto
from pace.formats.recognize import tell_format
from tests.pace.formats.job_kinds import document_of, serial_events
from tests.pace.formats.traces import Event, kineto_document, kineto_events, write_json

_OLD = {"cpu_op": "Operator", "user_annotation": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime"}


def _expect_the_same(folder: Path, text: str, *, workers: int | None = None) -> None:
    expected = read_kineto([write_json(folder / "t.json", kineto_document(kineto_events()))])
    path = folder / "odd.json"
    path.write_text(text, encoding="utf-8")
    made = read_kineto([path], workers=workers, name="t")
    said = {"rank": expected.metadata["rank"]}  # which a list does not say
    assert made.replace(metadata={**made.metadata, **said}) == expected


def test_integers_above_two_to_the_63(tmp_path: Path) -> None:
    """Addresses and hashes are as large; everything else is read as before."""
    events = kineto_events()
    events[5]["args"]["Addr"] = 2**64 - 1
    _expect_the_same(tmp_path, json.dumps(kineto_document(events, hash=2**65)))


def test_a_bare_list_of_events(tmp_path: Path) -> None:
    """Nothing says how many workers there were."""
    _expect_the_same(tmp_path, json.dumps(kineto_events()), workers=2)


def test_the_job_described_behind_the_events(tmp_path: Path) -> None:
    """`distributedInfo` counts wherever it stands."""
    document = kineto_document(kineto_events())
    last = {"distributedInfo": document.pop("distributedInfo")}
    _expect_the_same(tmp_path, json.dumps({**document, **last}))


def test_categories_of_torch_1_8(tmp_path: Path) -> None:
    """`Operator`, `Kernel` and `Runtime`; annotations stand among the operators."""
    events: list[Event] = [event | {"cat": _OLD.get(event.get("cat", ""), "")} for event in kineto_events()]
    _expect_the_same(tmp_path, json.dumps(kineto_document(events)))


@pytest.mark.parametrize("first_us", [0, 5_000])
def test_a_clock_that_begins_in_the_middle_of_a_step(tmp_path: Path, first_us: int) -> None:
    """The first event of a trace need not be its earliest: times before it are below 0."""
    events = serial_events()
    events.sort(key=lambda event: abs(event.get("ts", 0) - 1_000_000 - first_us))
    profile = read_kineto([write_json(tmp_path / "t.json", document_of(events))])
    assert profile.metadata["replay"]["error"] == pytest.approx(0, abs=0.1)


def test_a_trace_that_lost_all_but_the_job_is_still_a_trace(tmp_path: Path) -> None:
    """It is not taken for a profile without fields."""
    path = write_json(tmp_path / "t.json", {"distributedInfo": {"rank": 0, "world_size": 2}})
    assert tell_format(path) == "kineto"
    with pytest.raises(FormatError, match="no operators: expected a Kineto trace"):
        read_any([path])
