"""The steps document: read, written, and refused in one line that names the op or the step."""

import json
from typing import Any

import pytest
from hypothesis import given

from pace import InvalidSteps, StepsDocument, load_steps, parse_steps
from tests.pace.documents.step_documents import steps_documents
from tests.strategies import properties

DOCUMENT: dict[str, Any] = {
    "schema_version": 1,
    "kind": "parameter-server-steps",
    "name": "one layer",
    "batch": 32,
    "servers": 1,
    "ops": [
        {"name": "down/conv1", "resource": "downlink", "server": 0, "size_bytes": 37632, "deps": []},
        {"name": "fwd/conv1", "resource": "worker", "stream": None, "deps": ["down/conv1", "down/conv1"]},
        {"name": "bwd/conv1", "resource": "worker", "stream": None, "deps": ["fwd/conv1"]},
        {"name": "up/conv1", "resource": "uplink", "server": 0, "size_bytes": 37632, "deps": ["bwd/conv1"]},
        {"name": "update/conv1", "resource": "ps", "server": 0, "deps": ["up/conv1"]},
    ],
    "steps": [{"duration_s": [0, 0.001, 0.002, 0, 0.0001], "start_s": [0.001, 0.02, 0.03, 0.05, 0.06]}],
    "link": {"bytes_per_s": 1.2e7, "window_bytes": None, "discipline": "fifo"},
    "overhead": {"seconds_per_byte": 0, "seconds": 0},
    "metadata": {},
}


def changed(**changes: Any) -> str:
    """Return the document's JSON with some fields changed."""
    return json.dumps(DOCUMENT | changes)


def with_op(at: int, **changes: Any) -> str:
    """Return the document's JSON with one op changed."""
    ops = [dict(op) for op in DOCUMENT["ops"]]
    ops[at] |= changes
    return changed(ops=ops)


def test_the_documents_own_example() -> None:
    """All fields are read; a dependency that stands twice counts once."""
    steps = parse_steps(json.dumps(DOCUMENT))
    assert steps.dependencies == ((), (0,), (1,), (2,), (3,))
    assert steps.bytes_of("downlink") == (37632,)
    assert parse_steps(steps.to_json()) == steps


@properties(30)
@given(steps_documents())
def test_written_and_read_again(steps: StepsDocument) -> None:
    """The same document, the same bytes, the same hash."""
    again = parse_steps(steps.to_json())
    assert again == steps
    assert (again.to_json(), again.sha256) == (steps.to_json(), steps.sha256)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (with_op(0, deps=["update/conv1"]), "ops wait for one another in a cycle"),
        (with_op(1, deps=["conv"]), 'op "fwd/conv1" depends on "conv", which is no op'),
        (with_op(1, name="down/conv1"), 'two ops are named "down/conv1"'),
        (with_op(1, size_bytes=3), r'op "fwd/conv1": compute \(worker\) must not have size_bytes'),
        (with_op(0, size_bytes=None), r'op "down/conv1": a transfer \(downlink\) needs size_bytes'),
        (with_op(0, stream="gpu"), "must not have a stream"),
        (with_op(1, server=0), "compute of the worker must not have a server"),
        (with_op(3, server=1), 'op "up/conv1" is on server 1: expected below 1'),
        (
            with_op(0, size_bytes=-1),
            'op "down/conv1": size_bytes: expected a whole number (of at least|from) 0',
        ),
        (with_op(0, color="red"), "color: Extra inputs are not permitted"),
        (changed(ops=[]), "ops: there are none"),
        (changed(steps=[]), "steps: there are none"),
        (changed(steps=[{"duration_s": [0, 1]}]), "step 0: duration_s has 2 numbers for 5 ops"),
        (
            changed(steps=[{"duration_s": [0, 1, 1, 0, 0], "start_s": [0]}]),
            "step 0: start_s has 1 numbers for 5 ops",
        ),
        (changed(steps=[{"duration_s": [0, -1, 1, 0, 0]}]), "expected a number (of at least|from) 0"),
        (changed(link={"bytes_per_s": 0}), "link: bytes_per_s: expected a number above 0"),
        (changed(link={"bytes_per_s": 1, "discipline": "window"}), 'discipline "window" needs window_bytes'),
        (changed(link={"bytes_per_s": 1, "discipline": "lifo"}), "discipline"),
        (changed(servers=0), "servers: expected a whole number (of at least|from) 1"),
        (changed(batch=0), "batch: expected a (whole )?number above 0"),
        (changed(kind="profile"), "kind: "),
        (
            changed(ops=[{"name": "idle", "resource": "worker"}], steps=[{"duration_s": [0]}]),
            "step 0 takes no time",
        ),
        ("{", "JSON"),
    ],
)
def test_refused_in_one_line(document: str, complaint: str) -> None:
    """The message names the op or the step, what is wrong, and the value."""
    with pytest.raises(InvalidSteps, match=complaint) as refused:
        parse_steps(document)
    assert "\n" not in str(refused.value)


def test_a_files_name_stands_before_what_is_wrong(tmp_path: Any) -> None:
    """Several files may be read by one command."""
    path = tmp_path / "steps.json"
    path.write_text(changed(servers=0))
    with pytest.raises(InvalidSteps, match=r"steps\.json: servers"):
        load_steps(path)
