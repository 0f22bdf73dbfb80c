"""The profile document: what it refuses, and that every refusal names the op or gradient at fault."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError

from pace import InvalidProfile, PaceError, Profile, load_profile, optimize, parse_profile
from pace.documents.collective_costs import RingAllReduce
from tests.strategies import affine, changed, layered, profiles, properties

AFFINE = {"kind": "affine", "latency_s": 0.5, "seconds_per_byte": 0.125}


def document() -> dict[str, Any]:
    """Return a valid profile of two layers."""
    return {
        "schema_version": 1,
        "name": "two layers",
        "workers": 4,
        "ops": [
            {"name": "bwd/2", "duration_s": 1.0, "stream": "compute"},
            {"name": "bwd/1", "duration_s": 1.0, "stream": "compute", "deps": ["bwd/2"]},
            {"name": "fwd/1", "duration_s": 0.5, "stream": "compute", "waits_for": ["g1"]},
            {"name": "fwd/2", "duration_s": 0.5, "stream": "compute", "waits_for": ["g2"]},
        ],
        "gradients": [
            {"name": "g2", "size_bytes": 8, "dtype": "float32", "producer": "bwd/2"},
            {"name": "g1", "size_bytes": 4, "dtype": "float32", "producer": "bwd/1"},
        ],
        "allreduce": AFFINE,
        "metadata": {"note": "by hand"},
    }


def refusal(faulty: Any) -> str:
    """Return the message with which a document is refused, by the parser and by the constructor alike."""
    with pytest.raises(InvalidProfile) as refused:
        parse_profile(json.dumps(faulty))
    if isinstance(faulty, dict):
        with pytest.raises(ValidationError):
            Profile.model_validate(faulty)
    return str(refused.value)


def test_the_valid_document_is_read() -> None:
    """What the tests below break is whole."""
    profile = parse_profile(json.dumps(document()))
    assert profile.timing.ready_s.tolist() == [1, 2]
    assert profile.timing.tail_s.tolist() == [0.5, 1]
    assert profile.metadata == {"note": "by hand"}


def test_optional_fields_may_be_left_out() -> None:
    """Streams, dependencies, waits, metadata, and the spread of a duration."""
    bare = document()
    del bare["metadata"]
    bare["ops"] = [{"name": "only", "duration_s": 1}]
    bare["gradients"] = [{"name": "g", "size_bytes": 4, "dtype": "float32", "producer": "only"}]
    profile = parse_profile(json.dumps(bare))
    assert profile.ops[0].deps == ()
    assert profile.ops[0].stream is None
    assert profile.ops[0].duration_std_s == 0


FAULTS: dict[str, tuple[list[str | int], Any, list[str]]] = {
    "negative duration": (["ops", 1, "duration_s"], -0.5, ['op "bwd/1"', "duration_s", "-0.5"]),
    "duration that is no number": (["ops", 1, "duration_s"], float("nan"), ['op "bwd/1"', "duration_s"]),
    "infinite duration": (["ops", 1, "duration_s"], float("inf"), ['op "bwd/1"', "duration_s"]),
    "negative spread": (["ops", 2, "duration_std_s"], -1, ['op "fwd/1"', "duration_std_s"]),
    "duration left out": (["ops", 3], {"name": "fwd/2"}, ['op "fwd/2"', "duration_s"]),
    "unknown field": (["ops", 3, "durations"], 1, ['op "fwd/2"', "durations"]),
    "negative size": (["gradients", 0, "size_bytes"], -8, ['gradient "g2"', "size_bytes", "-8"]),
    "size with a fraction": (["gradients", 0, "size_bytes"], 8.5, ['gradient "g2"', "size_bytes"]),
    "size that is no number": (["gradients", 0, "size_bytes"], float("nan"), ['gradient "g2"', "size_bytes"]),
    "infinite size": (["gradients", 0, "size_bytes"], float("inf"), ['gradient "g2"', "size_bytes"]),
    "size that cuts an element": (["gradients", 1, "size_bytes"], 6, ['gradient "g1"', "float32's 4 bytes"]),
    "unknown dtype": (["gradients", 1, "dtype"], "float31", ['gradient "g1"', "dtype", "float31"]),
    "unknown producer": (["gradients", 1, "producer"], "bwd/9", ['gradient "g1"', '"bwd/9"', "no op"]),
    "unknown dependency": (["ops", 1, "deps"], ["bwd/9"], ['op "bwd/1"', '"bwd/9"', "no op"]),
    "unknown wait": (["ops", 3, "waits_for"], ["g9"], ['op "fwd/2"', '"g9"', "no gradient"]),
    "op named twice": (["ops", 3, "name"], "bwd/1", ['two ops are named "bwd/1"']),
    "gradient named twice": (["gradients", 1, "name"], "g2", ['two gradients are named "g2"']),
    "empty name": (["ops", 3, "name"], "", ["name"]),
    "no workers": (["workers"], 0, ["workers", "0"]),
    "half a worker": (["workers"], 2.5, ["workers"]),
    "unknown version": (["schema_version"], 2, ["schema_version"]),
    "unknown field of the profile": (["gradiens"], [], ["gradiens"]),
    "unknown cost": (["allreduce"], {"kind": "butterfly"}, ["allreduce", "expected one of 'affine'"]),
    "negative latency": (["allreduce", "latency_s"], -1, ["allreduce", "latency_s", "-1"]),
    "workers that fill no nodes": (
        ["allreduce"],
        {
            "kind": "two-level",
            "intra": {"bandwidth_bytes_per_s": 1, "latency_s": 0},
            "inter": {"bandwidth_bytes_per_s": 1, "latency_s": 0},
            "workers_per_node": 3,
        },
        ["4 workers cannot be divided into nodes of 3"],
    ),
    "more bytes than can be counted": (["gradients", 0, "size_bytes"], 2**53, ["9007199254740996 bytes"]),
    "times that overflow": (["ops", 0, "duration_s"], 1e17, ["1e+17 s"]),
    "an all-reduce that overflows": (["allreduce", "seconds_per_byte"], 1e17, ["all-reduce", "12 bytes"]),
}


@pytest.mark.parametrize(("path", "value", "named"), FAULTS.values(), ids=FAULTS)
def test_a_refusal_names_what_is_wrong(path: list[str | int], value: Any, named: list[str]) -> None:
    """The op or gradient, the field and the value."""
    message = refusal(changed(document(), path, value))
    for part in named:
        assert part in message


def test_numbers_as_text_are_refused_in_documents() -> None:
    """JSON has numbers; Python callers may be laxer."""
    with pytest.raises(InvalidProfile, match=r'op "bwd/2": duration_s'):
        parse_profile(json.dumps(changed(document(), ["ops", 0, "duration_s"], "1.0")))


def test_a_cycle_through_dependencies_is_shown() -> None:
    """The whole circle, back to where it began."""
    cyclic = changed(document(), ["ops", 0, "deps"], ["bwd/1"])
    assert '"bwd/2" -> "bwd/1" -> "bwd/2"' in refusal(cyclic) or '"bwd/1" -> "bwd/2" -> "bwd/1"' in refusal(
        cyclic
    )


def test_a_cycle_through_the_order_of_a_stream_is_shown() -> None:
    """An op that depends on one that comes after it on its own stream."""
    cyclic = changed(document(), ["ops", 2, "deps"], ["fwd/2"])
    message = refusal(cyclic)
    assert "cycle" in message
    assert '"fwd/1" -> "fwd/2"' in message
    assert '"fwd/2" -> "fwd/1"' in message


def test_an_op_that_depends_on_itself_is_shown() -> None:
    """A circle of one."""
    assert '"bwd/2" -> "bwd/2"' in refusal(changed(document(), ["ops", 0, "deps"], ["bwd/2"]))


def test_a_producer_that_waits_for_a_gradient_is_refused_with_the_path() -> None:
    """Assumption A: bwd/1 would start only after g2's all-reduce."""
    message = refusal(changed(document(), ["ops", 1, "waits_for"], ["g2"]))
    assert 'gradient "g1"' in message
    assert 'op "bwd/1" waits for gradient "g2"' in message


def test_an_ancestor_of_a_producer_that_waits_is_refused_with_the_path() -> None:
    """The path leads over every op in between, here along a stream."""
    early = document()
    early["ops"] = [
        {"name": "first", "duration_s": 1, "stream": "compute", "waits_for": ["g2"]},
        {"name": "second", "duration_s": 1, "stream": "compute"},
        *early["ops"],
    ]
    assert '"first" -> "second" -> "bwd/2"' in refusal(early)


def test_a_gradient_that_its_own_producer_waits_for_is_refused() -> None:
    """The shortest way to break Assumption A."""
    message = refusal(changed(document(), ["ops", 0, "waits_for"], ["g2"]))
    assert 'gradient "g2" would be ready only after another all-reduce' in message


def test_no_gradients_make_a_valid_profile() -> None:
    """There is nothing to send."""
    nothing = document() | {"gradients": []}
    nothing["ops"] = [
        {key: value for key, value in op.items() if key != "waits_for"} for op in nothing["ops"]
    ]
    profile = parse_profile(json.dumps(nothing))
    assert profile.timing.compute_s == 3
    assert profile.timing.ready_s.tolist() == []


def test_one_worker_makes_a_valid_profile() -> None:
    """All-reduces cost nothing."""
    assert float(parse_profile(json.dumps(document() | {"workers": 1})).cost(10**9)) == 0


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"3",
        b'"profile"',
        b"\xff\xfe",
        b'{"name": "\xc3\x28"}',
        b"[" * 100_000,
        b'{"metadata": ' + b"[" * 100_000,
        b'{"workers": ' + b"9" * 5000 + b"}",
        b'{"ops": {"a": 1}}',
        b'{"ops": [3, null, [], {"name": 3}]}',
        b'{"allreduce": {"kind": []}}',
        b'{"allreduce": {"kind": {"a": 1}}}',
        b'{"gradients": [{"name": "g", "size_bytes": true}]}',
    ],
)
def test_anything_that_is_no_profile_is_refused_and_nothing_else_happens(text: bytes) -> None:
    """Every document ends in a profile or in InvalidProfile."""
    with pytest.raises(InvalidProfile):
        parse_profile(text)


def test_at_most_twenty_faults_are_listed() -> None:
    """A document with thousands of faults does not make a message of megabytes."""
    many = document() | {"ops": [{"name": f"op{number}", "duration_s": -1} for number in range(1000)]}
    assert len(refusal(many).splitlines()) == 20


def test_a_file_is_named_in_the_refusal(tmp_path: Path) -> None:
    """Which of several files was wrong."""
    path = tmp_path / "broken.json"
    path.write_text("{}")
    with pytest.raises(InvalidProfile, match=r"broken\.json"):
        load_profile(path)
    with pytest.raises(OSError, match="nowhere"):
        load_profile(tmp_path / "nowhere.json")


def test_errors_are_pace_errors_and_value_errors() -> None:
    """A caller may catch either."""
    assert issubclass(InvalidProfile, PaceError)
    assert issubclass(InvalidProfile, ValueError)


@given(profiles())
@properties(30)
def test_profiles_read_back_equal(profile: Profile) -> None:
    """JSON in between keeps every field, the hash and the fingerprint."""
    again = parse_profile(profile.model_dump_json())
    assert again.timing.compute_s == profile.timing.compute_s
    assert again == profile
    assert again.sha256 == profile.sha256
    assert again.fingerprint == profile.fingerprint


def test_the_hash_is_of_everything_and_the_fingerprint_of_what_is_sent() -> None:
    """Names, sizes, dtypes and workers make the fingerprint; order and times do not."""
    one = layered([4, 2], allreduce=affine(0, 1))
    slower = layered([4, 2], allreduce=affine(0, 2))
    turned = one.replace(gradients=one.gradients[::-1])
    larger = layered([4, 3], allreduce=affine(0, 1))
    assert len({one.sha256, slower.sha256, turned.sha256, larger.sha256}) == 4
    assert one.fingerprint == slower.fingerprint == turned.fingerprint
    assert one.fingerprint != larger.fingerprint
    assert one.fingerprint != one.replace(workers=8).fingerprint


def test_replacing_fields_validates_anew() -> None:
    """And derives the timing anew."""
    profile = layered([4, 2], allreduce=affine(0, 1))
    faster = profile.replace(ops=tuple(op.model_copy(update={"duration_s": 0.5}) for op in profile.ops))
    assert profile.timing.compute_s == 4
    assert faster.timing.compute_s == 2
    with pytest.raises(InvalidProfile, match="no op"):
        profile.replace(ops=())


def test_a_long_chain_of_ops_is_read() -> None:
    """Thousands of ops in a row: nothing recurses along them."""
    n = 5_000
    ops = [{"name": f"op{i}", "duration_s": 1e-6, "deps": [f"op{i - 1}"] if i else []} for i in range(n)]
    gradients = [{"name": "g", "size_bytes": 4, "producer": f"op{n - 1}"}]
    profile = parse_profile(json.dumps(document() | {"ops": ops, "gradients": gradients}))
    assert profile.timing.ready_s[0] == pytest.approx(n * 1e-6)
    assert optimize(profile).predicted.compute_s == pytest.approx(n * 1e-6)
    ops[0]["deps"] = [f"op{n - 1}"]
    assert "cycle" in refusal(document() | {"ops": ops, "gradients": gradients})


def test_a_norm_that_takes_forever_is_refused_without_gradients() -> None:
    """Eight bytes are exchanged in any case."""
    with pytest.raises(InvalidProfile, match=r"an all-reduce of 8 bytes takes 6e\+17 s"):
        Profile(
            name="empty",
            workers=4,
            ops=(),
            gradients=(),
            allreduce=RingAllReduce(bandwidth_bytes_per_s=1.0, latency_s=1e17),
            update="global-norm",
        )
