"""The schedule document: what it refuses by itself, and the schema files of both documents."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given

from pace import InvalidSchedule, Options, Profile, Schedule, load_schedule, optimize, parse_schedule
from pace.documents.schedule import Segment
from tests.strategies import affine, changed, layered, options, profiles, properties

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples" / "profiles").glob("*.json"))


def schema(name: str) -> dict[str, Any]:
    """Return one of the schema files."""
    loaded: dict[str, Any] = json.loads((ROOT / "docs" / "schema" / f"{name}.schema.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Return a schedule of two groups of 4-byte elements in three segments."""
    profile = layered([8, 1], allreduce=affine(0, 0.25), dtypes=["float32", "float32"])
    made = optimize(profile, Options(fusion="none"))
    assert [(s.group, s.offset_bytes, s.size_bytes) for s in made.transfers] == [
        (0, 0, 4),
        (1, 0, 4),
        (0, 4, 28),
    ]
    dumped: dict[str, Any] = made.model_dump(mode="json")
    return dumped


def refusal(faulty: dict[str, Any]) -> str:
    """Return the message with which a document is refused."""
    with pytest.raises(InvalidSchedule) as refused:
        parse_schedule(json.dumps(faulty))
    return str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (["transfers", 0, "size_bytes"], 8, ["group 0", "byte 4", "twice"]),
        (["transfers", 2, "offset_bytes"], 8, ["group 0", "byte 4", "not at all"]),
        (["transfers", 2, "size_bytes"], 24, ["group 0", "28 bytes of 32"]),
        (["transfers", 2, "size_bytes"], 32, ["group 0", "36 bytes of 32"]),
        (["transfers", 0, "size_bytes"], 3, ["transfers[0]", "cuts an element"]),
        (["transfers", 2, "offset_bytes"], 5, ["transfers[2]", "cuts an element"]),
        (["transfers", 1, "group"], 2, ["transfers[1]", "no group"]),
        (["transfers", 1, "group"], -1, ["transfers", "1", "group"]),
        (["transfers", 1, "size_bytes"], 0, ["transfers", "1", "size_bytes"]),
        (["transfers", 1, "start_s"], -1, ["transfers", "1", "start_s"]),
        (["groups", 0, "size_bytes"], 33, ["group 0", "cut an element"]),
        (["groups", 0, "tensors"], ["g1"], ['"g1" is in two places']),
        (["groups", 0, "tensors"], [], ["groups", "0", "tensors"]),
        (["groups", 0, "dtype"], "float31", ["groups", "0", "dtype"]),
        (["profile_sha256"], "abc", ["profile_sha256"]),
        (["predicted", "iteration_s"], float("nan"), ["predicted", "iteration_s"]),
        (["predicted", "iteration_ms"], 1, ["iteration_ms"]),
        (["schema_version"], 2, ["schema_version"]),
        (["framework"], "mpi", ["framework"]),
        (["exchange"], "gossip", ["exchange"]),
        (["exchange"], "sharded", ["sharding"]),
        (["exchange"], "servers", ["cluster"]),
        (["links"], ["up 0"], ["links"]),
        (["proofs"], [], ["proofs"]),
        (["transfers", 0, "op"], "push", ["transfers[0]", "push"]),
        (["groups", 0, "transfer_s"], None, ["group 0", "transfer_s"]),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(
    document: dict[str, Any], path: list[str | int], value: Any, named: list[str]
) -> None:
    """Before anybody asks whether it fits a profile; the message says where."""
    message = refusal(changed(document, path, value))
    for part in named:
        assert part in message


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff"])
def test_anything_that_is_no_schedule_is_refused(text: bytes) -> None:
    """Every document ends in a schedule or in InvalidSchedule."""
    with pytest.raises(InvalidSchedule):
        parse_schedule(text)


def test_a_file_is_named_in_the_refusal(tmp_path: Path) -> None:
    """Which of several files was wrong."""
    path = tmp_path / "broken.json"
    path.write_text("{}")
    with pytest.raises(InvalidSchedule, match=r"broken\.json"):
        load_schedule(path)


@given(profiles(), options())
@properties(40)
def test_schedules_read_back_equal(profile: Profile, chosen: Options) -> None:
    """JSON in between changes nothing, and writing again gives the same bytes."""
    schedule = optimize(profile, chosen)
    again = parse_schedule(schedule.to_json())
    assert again == schedule
    assert again.to_json() == schedule.to_json()


@pytest.mark.pack("servers")
@pytest.mark.pack("sync")
def test_schema_files_are_current() -> None:
    """``scripts/schemas`` would write what is there."""
    done = subprocess.run(
        [ROOT / "scripts" / "schemas", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@given(profiles(), options())
@properties(30)
def test_documents_keep_to_their_schema(profile: Profile, chosen: Options) -> None:
    """What is written is what the schema files describe."""
    jsonschema_rs.validate(schema("profile"), json.loads(profile.model_dump_json()))
    jsonschema_rs.validate(schema("schedule"), json.loads(optimize(profile, chosen).to_json()))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_bundled_profiles_keep_to_the_schema(path: Path) -> None:
    """Optional fields left out, as people write them."""
    jsonschema_rs.validate(schema("profile"), json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["workers"], 0),
        (["ops", 0, "duration_s"], -1),
        (["ops", 0, "durations"], 1),
        (["gradients", 0, "size_bytes"], 1.5),
        (["gradients", 0, "dtype"], "float31"),
        (["allreduce"], {"latency_s": 0, "seconds_per_byte": 1}),
        (["allreduce"], {"kind": "butterfly"}),
        (["allreduce", "latency_s"], -1),
    ],
)
def test_the_schema_refuses_what_the_parser_refuses(path: list[str | int], value: Any) -> None:
    """As far as a schema can tell."""
    document = json.loads(layered([4], allreduce=affine(1, 1)).model_dump_json())
    assert jsonschema_rs.is_valid(schema("profile"), document)
    assert not jsonschema_rs.is_valid(schema("profile"), changed(document, path, value))


def test_field_names_are_what_others_read() -> None:
    """Runtime, service and scripts read these; renaming one is a new schema_version."""
    assert list(Schedule.model_fields) == [
        "schema_version",
        "exchange",
        "framework",
        "profile_sha256",
        "fingerprint",
        "solver",
        "predicted",
        "execution",
        "links",
        "groups",
        "transfers",
        "proofs",
        "bound",
        "chain_bound",
        "norm_bound",
        "sharding",
        "cluster",
        "graph",
    ]
    assert list(Segment.model_fields) == [
        "op",
        "group",
        "offset_bytes",
        "size_bytes",
        "link",
        "priority",
        "start_s",
        "end_s",
        "start_slot",
        "num_slots",
    ]
