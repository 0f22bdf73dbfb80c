"""Where plans come from: a file, a service that answers, one that does not; and what is refused."""

import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

import pace.runtime.control.plan_source
import pace.runtime.control.replanner
from pace.api.settings import Settings
from pace.client import Client
from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions, ScheduleMismatch
from pace.runtime.engine.plan import cut, plan_from_schedule, plan_locally
from pace.runtime.options import Replanning
from tests.api import raw_server
from tests.api.answering import answering, send
from tests.api.process import ServiceProcess
from tests.runtime.launch import run_ranks
from tests.runtime.logs import captured_events
from tests.runtime.models import batches, build
from tests.runtime.schedules import shuffled_schedule, sizes_of
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap

_NO_SCHEDULE = json.dumps(
    {"type": "urn:pace:problem:not-found", "title": "Not found", "status": 404, "detail": "no schedule"}
).encode()
ABOUT_PLANS = {
    "pace.no_service",
    "pace.schedule_found",
    "pace.schedule_refused",
    "pace.schedule_adopted",
    "pace.access_denied",
}


def _sources_of_plans(_rank: int, _size: int, choices: dict[str, Any]) -> dict[str, tuple[str, int]]:
    found = {}
    for name, options in choices.items():
        model = build("conv")
        optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, **options)
        report = optimizer.report()
        optimizer.close()
        found[name] = report.source, len(report.groups)
    return found


@pytest.fixture
def silent_service() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def dripping_service() -> Iterator[str]:
    """Sends headers without end."""
    with raw_server.answering(raw_server.drip_headers) as url:
        yield url


@pytest.fixture
def wrong_service() -> Iterator[str]:
    """Answers everything with something that is no schedule."""
    with answering(lambda handler: send(handler, 200, b'{"schema_version": 1, "groups": "none"}')) as url:
        yield url


@pytest.mark.races_with_machine(reason="the service must answer in the 2 s that ranks wait at the start")
def test_plans_come_from_files_and_training_starts_without_a_usable_service(
    tmp_path: Path, silent_service: str, dripping_service: str, wrong_service: str
) -> None:
    """The path of a schedule does what the schedule does; silent, wrong or absent services keep nobody."""
    schedule = shuffled_schedule(build("conv"), 2, seed=1)
    path = tmp_path / "schedule.json"
    path.write_bytes(schedule.to_json())
    services = {
        "silent": silent_service,
        "dripping": dripping_service,
        "wrong": wrong_service,
        "closed": "http://127.0.0.1:9",
    }
    never = Replanning(profile_iterations=0)
    choices: dict[str, Any] = {
        name: {"service": url, "job": "conv", "replanning": never} for name, url in services.items()
    }
    # Other ranks have given up on rank 0 long before a service's usual time is over.
    choices["hurried"] = choices["silent"] | {"timeout_s": 4.0}
    choices |= {"file": {"schedule": str(path)}, "profiling": {"service": services["wrong"], "job": "conv"}}
    for found in run_ranks(_sources_of_plans, 2, choices, timeout_s=200):
        assert found.pop("file") == ("schedule", len(schedule.groups))
        assert found.pop("profiling")[0] == "plain"
        assert set(found) == {*services, "hurried"}
        assert {source for source, _ in found.values()} == {"local"}


def test_a_mismatch_says_what_differs() -> None:
    """Missing, extra and resized gradients are named."""
    schedule = shuffled_schedule(build("conv"), 2, seed=3)
    sizes = sizes_of(build("conv"))
    with pytest.raises(ScheduleMismatch, match=r'the model has no gradient "head.bias"'):
        plan_from_schedule(schedule, [size for size in sizes if size.name != "head.bias"], 2)
    with pytest.raises(ScheduleMismatch, match=r'does not send gradient "embed.weight"'):
        plan_from_schedule(schedule, [*sizes, *sizes_of(build("recurrent"))], 2)
    with pytest.raises(ScheduleMismatch, match="another number of workers than 4"):
        plan_from_schedule(schedule, sizes, 4)
    assert plan_from_schedule(schedule, sizes, 2).source == "schedule"


def test_local_plans_send_every_byte_once() -> None:
    """Groups hold every gradient once, one dtype each, and segments cover them without cutting elements."""
    sizes = sizes_of(build("mixed"))
    plan = plan_locally(sizes, max_group_bytes=300, max_segment_bytes=100)
    assert sorted(name for group in plan.groups for name in group.gradients) == sorted(s.name for s in sizes)
    for number, group in enumerate(plan.groups):
        own = sorted((s.offset_bytes, s.size_bytes) for s in plan.segments if s.group == number)
        assert sum(size for _, size in own) == group.size_bytes
        assert [offset for offset, _ in own] == [sum(size for _, size in own[:i]) for i in range(len(own))]
    assert [piece.size_bytes for piece in cut(0, 24, "float64", 15)] == [8, 8, 8]
    assert cut(0, 0, "float32", 8) == []


def _resource(schedule: Schedule, **changes: Any) -> bytes:
    return json.dumps(
        {
            "id": "0" * 32,
            "job": "train",
            "fingerprint": schedule.fingerprint,
            "profile_sha256": schedule.profile_sha256,
            "created_at": "2026-01-01T00:00:00+00:00",
            "schedule": json.loads(schedule.to_json()) | changes,
        }
    ).encode()


def _halves_of_an_address(
    rank: int, _size: int, url: str, cases: dict[str, tuple[dict[str, str], dict[str, str]]]
) -> Any:
    pace.runtime.control.plan_source._START_TIMEOUT_S = 60.0
    found = {}
    for name, (environment, given) in cases.items():
        model = build("conv")
        # Launchers do not give every rank the same environment.
        os.environ.update(
            {key: url if value == "URL" else value for key, value in environment.items() if not rank}
        )
        options = {key: url if value == "URL" else value for key, value in given.items()}
        with captured_events() as logs:
            optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, **options)
        found[name] = (
            optimizer.report().source,
            [each["event"] for each in logs if each["event"] in ABOUT_PLANS],
        )
        optimizer.close()
        for key in environment:
            os.environ.pop(key, None)
    return found


def test_arguments_and_environment_complete_each_other() -> None:
    """Either half of the address may come from either; a half alone is said once and no reason to fail."""
    schedule = shuffled_schedule(build("conv"), 2, seed=1)
    cases = {
        "job given": ({"PACE_URL": "URL"}, {"job": "train"}),
        "service given": ({"PACE_JOB": "train"}, {"service": "URL"}),
        "job given over the environment's": ({"PACE_URL": "URL", "PACE_JOB": "other"}, {"job": "train"}),
        "only a url": ({"PACE_URL": "URL"}, {}),
        "only a job": ({}, {"job": "train"}),
    }

    def answer(handler: BaseHTTPRequestHandler) -> None:
        known = "job=train&" in handler.path
        send(handler, 200 if known else 404, _resource(schedule) if known else _NO_SCHEDULE)

    with answering(answer) as url:
        first, second = run_ranks(_halves_of_an_address, 2, url, cases)
    for found in (first, second):
        for name in cases:
            assert found[name][0] == ("local" if "only" in name else "schedule"), name
    found_it, alone = ["pace.schedule_found"], ["pace.no_service"]
    assert [first[name][1] for name in cases] == [found_it, found_it, found_it, alone, alone]
    assert not any(events for _, events in second.values())


def _with_other_variables(_rank: int, _size: int) -> list[tuple[str, str]]:
    of_service = (name.upper() for name in Settings.model_fields)
    of_job = ("MODE", "SCHEDULE", "APIKEY", "DRIFT_ITERATION", "SERVICE", "TIMEOUT")
    for variable in (*of_service, *of_job, "SERVERS_HOST"):  # the last is for a pack
        os.environ[f"PACE_{variable}"] = "7"
    model = build("conv")
    with captured_events() as logs:
        wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model).close()
    return [(each["name"], each["use"]) for each in logs if each["event"] == "pace.unknown_variable"]


def test_a_variable_that_no_job_reads_is_told_of() -> None:
    """Rank 0 says what was probably meant; variables of the service and of packs are left alone."""
    first, second = run_ranks(_with_other_variables, 2)
    assert first == [
        ("PACE_APIKEY", "PACE_API_KEY"),
        ("PACE_DRIFT_ITERATION", "PACE_DRIFT_ITERATIONS"),
        ("PACE_MODE", "mode=... in the script"),
        ("PACE_SCHEDULE", "plan=Plan(schedule=...) in the script"),
        ("PACE_SERVICE", "PACE_URL"),
        ("PACE_TIMEOUT", "timeout_s=... in the script"),
    ]
    assert second == []


def _with_addresses(_rank: int, _size: int, addresses: Sequence[str]) -> list[str]:
    found = []
    for address in addresses:
        model = build("conv")
        with pytest.raises(InvalidOptions) as raised:
            wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, service=address, job="train")
        found.append(str(raised.value))
    return found


def test_an_address_that_is_not_a_url_is_refused() -> None:
    """The message has the address that was meant, and no password."""
    addresses = ["scheduler:8080", "localhost", "htp://scheduler:8080", "http://scheduler:port"]
    addresses.append("http://me:secret@scheduler:8080")
    first, second = run_ranks(_with_addresses, 2, addresses)
    assert first == second
    meant = [f"http://{each}" for each in ("scheduler:8080", "localhost", "scheduler:8080")]
    for address, message, use in zip(addresses[:3], first[:3], meant, strict=True):
        assert message == f"service is {address!r}, which is not a URL: use '{use}'"
    assert first[3].startswith("service is 'http://scheduler:port', which is not a URL: Port")
    assert "leave the user name" in first[4]
    assert "secret" not in first[4]


def _train_without_a_key(rank: int, _size: int, url: str) -> list[str]:
    pace.runtime.control.plan_source._START_TIMEOUT_S = 60.0
    model = build("conv")
    (batch,) = batches("conv", 1, rank)
    with captured_events() as logs:
        optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, service=url, job="train")
        assert not [thread for thread in threading.enumerate() if thread.name == "pace.late"]
        optimizer.zero_grad()
        backward(model(*batch))
        optimizer.step()
        assert optimizer.report().replanning == "none"  # no profile that nobody would take
        optimizer.close()
    return [f"{each['event']}: {each['reason']}" for each in logs if "reason" in each]


def test_a_service_that_wants_a_key_is_told_of_and_not_asked_again(tmp_path: Path) -> None:
    """Training goes on; rank 0 says once which variable to set."""
    with ServiceProcess(tmp_path, auth="required") as service:
        first, second = run_ranks(_train_without_a_key, 2, service.url)
        assert len([each for each in service.events("request") if each["status"] == 401]) == 1
    assert second == []
    (line,) = first
    assert line.startswith("pace.access_denied")
    assert "401" in line
    assert "set PACE_API_KEY" in line


def _train_with_a_key_to_read(rank: int, _size: int, url: str, key: str) -> list[str]:
    pace.runtime.control.plan_source._START_TIMEOUT_S = 60.0
    model = build("conv")
    (batch,) = batches("conv", 1, rank)
    options: dict[str, Any] = {"service": url, "job": "train", "api_key": key}
    options["replanning"] = Replanning(profile_iterations=2)
    with captured_events() as logs:
        optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, **options)
        done = False
        while not done:
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
            denied = any(each["event"] == "pace.access_denied" for each in logs)
            done = optimizer._transport.broadcast(b"denied" if denied else b"") == b"denied"
        optimizer.close()
    return [each["event"] for each in logs]


def test_a_job_without_the_right_to_submit_is_not_told_to_wait_for_its_schedule(tmp_path: Path) -> None:
    """Its profile was refused, so no schedule will come; the one line asks for another key."""
    with ServiceProcess(tmp_path, auth="required") as service:
        first, second = run_ranks(_train_with_a_key_to_read, 2, service.url, service.token("vision", "read"))
    assert first.count("pace.access_denied") == 1
    assert "pace.ended_without_schedule" not in first
    assert second == []


def test_a_key_that_is_withdrawn_ends_the_asking(tmp_path: Path) -> None:
    """The thread that asks during training says it once, and ends."""
    with ServiceProcess(tmp_path, auth="required") as service, captured_events() as logs:

        def ask() -> bytes:
            with Client(service.url, "pace_withdrawn", timeout_s=60) as client:
                client.newest_schedule("train", "0" * 64)
            return b""

        late = pace.runtime.control.replanner.LateSchedule(ask)
        late._thread.join(60)
        assert not late._thread.is_alive()
    (line,) = [each for each in logs if each["event"] == "pace.access_denied"]
    assert "set PACE_API_KEY" in line["reason"]
    assert line["consequence"] == "training goes on, and the job does not ask again"


def _train_until_it_fits(rank: int, _size: int, url: str) -> Any:
    pace.runtime.control.replanner.FIRST_DELAY_S = pace.runtime.control.replanner.LONGEST_DELAY_S = 0.05
    pace.runtime.control.plan_source._START_TIMEOUT_S = 60.0
    never = Replanning(profile_iterations=0)
    model = build("conv")
    (batch,) = batches("conv", 1, rank)
    with captured_events() as logs:
        optimizer = wrap(
            "gloo", OPTIMIZERS["sgd"](trainable(model)), model, service=url, job="train", replanning=never
        )
        while optimizer._plan.source != "schedule":
            optimizer.zero_grad()
            backward(model(*batch))
            optimizer.step()
        optimizer.close()
    return [each["event"] for each in logs]


def test_an_answer_that_does_not_fit_is_not_the_last() -> None:
    """The service is asked again; the same unfit schedule is refused once, and a fitting one adopted."""
    schedule = shuffled_schedule(build("conv"), 2, seed=1)
    document = json.loads(schedule.to_json())
    document["groups"][0]["tensors"][0] = "somebody.else"
    answers = [_resource(schedule, groups=document["groups"])] * 4

    def answer(handler: BaseHTTPRequestHandler) -> None:
        send(handler, 200, answers.pop() if answers else _resource(schedule))

    with answering(answer) as url:
        first, second = run_ranks(_train_until_it_fits, 2, url)
    assert [each for each in first if each in ABOUT_PLANS] == [
        "pace.schedule_refused",
        "pace.schedule_adopted",
    ]
    assert second == []  # rank 0 speaks for all
    assert answers == []


def _local_groups(_rank: int, _size: int, most_bytes: int) -> tuple[list[int], list[int]]:
    from pace.runtime.transports.gloo import GlooTransport

    GlooTransport.local_bytes = most_bytes
    model = build("conv")
    optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model)
    sizes = [group.size_bytes for group in optimizer.report().groups]
    segments = [segment.size_bytes for segment in optimizer._plan.segments]
    optimizer.close()
    return sizes, segments


def test_a_local_plan_has_the_transports_sizes() -> None:
    """NCCL's is coarser than Gloo's: in the time of handing a sum over, a fast network carries 4 MiB."""
    (whole, uncut), *_ = run_ranks(_local_groups, 2, 1 << 20)
    (parts, cut_up), *_ = run_ranks(_local_groups, 2, 1024)
    assert len(whole) == 1
    assert uncut == whole
    assert len(parts) > 3
    assert max(cut_up) == 1024
    assert sum(parts) == sum(cut_up) == sum(whole)
