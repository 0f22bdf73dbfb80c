"""The service schedules a profile whose links are those of parameter servers for push and pull."""

import json
import zlib
from datetime import UTC, datetime

import pytest

from pace.api.questions.all_kinds import answer_question
from pace.api.workers.drawings import chart, timeline
from pace.client.documents import ScheduleResource
from pace.documents.options import Options
from pace.documents.profile import Gradient, Op, Profile
from pace.documents.push_pull import PushPull
from pace.documents.schedule import parse_schedule


@pytest.fixture(scope="module")
def profile() -> Profile:
    """Three layers on two servers."""
    layers = range(3)
    return Profile(
        name="pushed",
        workers=2,
        ops=(
            *(Op(name=f"bwd/{n}", duration_s=1.0, stream="compute") for n in reversed(layers)),
            *(Op(name=f"fwd/{n}", duration_s=1.0, stream="compute", waits_for=(f"g{n}",)) for n in layers),
        ),
        gradients=tuple(
            Gradient(name=f"g{n}", size_bytes=4000 * (n + 1), dtype="float32", producer=f"bwd/{n}")
            for n in layers
        ),
        allreduce=PushPull(servers=2, worker_bytes_per_s=4000.0),
    )


def test_such_a_profile_gets_a_schedule_for_servers(profile: Profile) -> None:
    """With its servers, in the resource that clients read, and with a timeline of every connection."""
    # In parts of a given size: to look for the best one takes half a minute without any latency.
    stored = zlib.compress(profile.to_json())
    options = Options(max_group_bytes=5000, partition_bytes=2000)
    document = answer_question("schedule", stored, options.model_dump_json())
    schedule = parse_schedule(document)
    assert schedule.placement.exchange == profile.allreduce
    assert all(len(group.tensors) == 1 for group in schedule.groups)
    resource = {
        "id": "0" * 32,
        "job": None,
        "fingerprint": profile.fingerprint,
        "profile_sha256": profile.sha256,
        "created_at": datetime.now(UTC).isoformat(),
        "schedule": json.loads(document),
    }
    read = ScheduleResource.model_validate_json(json.dumps(resource)).schedule
    assert read == schedule
    trace = json.loads(timeline(stored, document))["traceEvents"]
    rows = {each["tid"]: each["args"]["name"] for each in trace if each["name"] == "thread_name"}
    assert list(rows.values())[1:] == [
        f"{way} server {server}" for server in (0, 1) for way in ("push to", "pull from")
    ]
    for segment in schedule.of_op("pull"):
        pulls = [
            each
            for each in trace
            if each["ph"] == "X"
            and rows[each["tid"]] == f"pull from server {segment.link // 2}"
            and each["args"]["priority"] == segment.priority
        ]
        (pull,) = pulls
        assert pull["ts"] + pull["dur"] == pytest.approx(segment.end_s * 1e6)
    last = max(each["ts"] + each["dur"] for each in trace if each["ph"] == "X")
    assert last == pytest.approx(schedule.predicted.iteration_s * 1e6)
    assert b"<svg" in chart(stored, document)
