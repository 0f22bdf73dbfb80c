"""Where plans come from: a file, a service that answers, one that does not; and what is refused."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pace.errors import InvalidOptions, ScheduleMismatch
from pace.runtime.plan import cut, plan_from_schedule, plan_locally
from tests.runtime.launch import run_ranks
from tests.runtime.models import build
from tests.runtime.schedules import shuffled_schedule, sizes_of
from tests.runtime.training import OPTIMIZERS, trainable, wrap


def _source_of_plan(_rank: int, _size: int, options: dict[str, Any]) -> tuple[str, int]:
    model = build("conv")
    optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, **options)
    report = optimizer.report()
    optimizer.close()
    return report.source, len(report.groups)


def test_a_schedule_may_come_from_a_file(tmp_path: Path) -> None:
    """The path of a schedule does what the schedule does."""
    schedule = shuffled_schedule(build("conv"), 2, seed=1)
    path = tmp_path / "schedule.json"
    path.write_bytes(schedule.to_json())
    assert run_ranks(_source_of_plan, 2, {"schedule": str(path)}) == [("schedule", len(schedule.groups))] * 2


@pytest.fixture
def silent_service() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def wrong_service() -> Iterator[str]:
    """Answers everything with something that is no schedule."""

    class Wrong(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"schema_version": 1, "groups": "none"}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Wrong) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("service", ["silent_service", "wrong_service", "closed"])
def test_training_starts_without_a_usable_service(service: str, request: pytest.FixtureRequest) -> None:
    """Law 6: silent, wrong or absent, the service does not keep a job from starting."""
    url = "http://127.0.0.1:9" if service == "closed" else request.getfixturevalue(service)
    options = {"service": url, "job": "conv"}
    for source, _ in run_ranks(_source_of_plan, 2, options, timeout_s=150):
        assert source == "local"


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


def _refused(_rank: int, _size: int, options: dict[str, Any]) -> str:
    model = build("conv")
    try:
        wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, **options)
    except InvalidOptions as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"service": "http://127.0.0.1:9"}, "service and job go together"),
        ({"backward_passes_per_step": 0}, "at least 1 is needed"),
        ({"compression": "zip"}, "none, fp16, bf16 are supported"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    """The message says what would do."""
    (message,) = run_ranks(_refused, 1, options)
    assert said in message
