"""What the release before stored in a database both releases use: schedules and options of tasks."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given

from pace import Options, check, parse_profile, parse_schedule
from pace.api.previous_release import (
    current_schedule,
    current_what_if,
    read_options,
    read_question,
    stored_options,
    stored_question,
    stored_what_if,
)
from pace.client.what_if_documents import GridDocument, WhatIfQuestion
from pace.documents.cluster import Cluster
from pace.documents.push_pull import PushPull
from pace.planning.optimize import optimize
from tests.strategies import options, properties

# A profile with its schedules as that release wrote them: {"profile": ..., "NAME": {"options", "schedule"}}.
STORED = json.loads(gzip.decompress((Path(__file__).parent / "earlier_schedules.json.gz").read_bytes()))
KINDS = sorted(STORED["schedules"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_schedule_is_converted_when_it_is_read(kind: str) -> None:
    """It fits its profile, and says what this release answers to the same question."""
    stored = STORED["schedules"][kind]
    profile = parse_profile(json.dumps(stored["profile"]))
    found = parse_schedule(current_schedule(json.dumps(stored["schedule"]).encode()))
    if stored["options"] is None:
        made = optimize(profile, Options(cluster=found.cluster))
    else:
        made = optimize(profile, read_options(json.dumps(stored["options"])))
    if kind == "servers, colocated":  # that release timed some transfers by too few links
        assert found.groups == made.groups
        assert found.predicted.iteration_s <= made.predicted.iteration_s
        return
    assert check(profile, found) == []
    assert found.model_copy(update={"solver": made.solver, "proofs": made.proofs}) == made
    assert [proof.set for proof in found.proofs] == [proof.set for proof in made.proofs]
    assert [proof.bound_s for proof in found.proofs] == pytest.approx([p.bound_s for p in made.proofs])


def test_a_schedule_of_this_release_is_left_as_it_is() -> None:
    """Byte for byte."""
    profile = parse_profile(json.dumps(next(iter(STORED["schedules"].values()))["profile"]))
    document = optimize(profile).to_json()
    assert current_schedule(document) is document


@given(options())
@properties(60)
def test_options_are_read_as_they_were_written(chosen: Options) -> None:
    """Whatever is asked for."""
    assert read_options(stored_options(chosen)) == chosen


@pytest.mark.parametrize(
    "chosen",
    [
        Options(exchange="sharded"),
        Options(exchange="allreduce", framework="ddp"),
        Options(exchange="servers", partition_bytes=4096, discipline="static"),
        Options(cluster=Cluster(name="two", exchange=PushPull(servers=2, worker_bytes_per_s=1e9))),
    ],
)
def test_options_of_every_exchange_are_read_as_they_were_written(chosen: Options) -> None:
    """Those that the release before does not know as well."""
    assert read_options(stored_options(chosen)) == chosen


def test_policies_of_what_ifs_are_written_as_the_release_before_calls_them() -> None:
    """Both releases answer the same question once, whichever was asked; nothing else is touched."""
    question = WhatIfQuestion(grid=GridDocument(policies=("ddp", "pace", "paper"), baseline="paper"))
    stored = stored_question(question)
    assert json.loads(stored)["grid"]["policies"] == ["ddp", "optimal", "pace"]
    assert json.loads(stored)["grid"]["baseline"] == "pace"
    assert read_question(stored) == question
    answer = (
        b'{"profile":"pace","baseline":"ddp","cells":[{"policy":"pace"},{"policy":"paper"},{"policy":"ddp"}]}'
    )
    earlier = stored_what_if(answer)
    assert [cell["policy"] for cell in json.loads(earlier)["cells"]] == ["optimal", "pace", "ddp"]
    assert current_what_if(earlier) == answer


def test_options_are_written_in_the_words_of_the_release_before() -> None:
    """Which may take the task: it knows targets, and calls the paper's fusion "pace"."""
    assert json.loads(stored_options(Options(exchange="sharded", fusion="paper"))) == {
        "fusion": "pace",
        "jitter": 0.0,
        "max_group_bytes": None,
        "max_segment_bytes": None,
        "oracle": "jackson",
        "risk": "mean",
        "scenarios": 0,
        "search_calls": 2000,
        "slot_s": None,
        "target": "sharded",
    }
