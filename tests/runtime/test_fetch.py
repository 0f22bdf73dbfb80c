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
from pace.runtime.replanning import Replanning
from tests.runtime.launch import run_ranks
from tests.runtime.models import build
from tests.runtime.schedules import shuffled_schedule, sizes_of
from tests.runtime.training import OPTIMIZERS, trainable, wrap


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


def test_plans_come_from_files_and_training_starts_without_a_usable_service(
    tmp_path: Path, silent_service: str, wrong_service: str
) -> None:
    """The path of a schedule does what the schedule does; silent, wrong or absent services keep nobody."""
    schedule = shuffled_schedule(build("conv"), 2, seed=1)
    path = tmp_path / "schedule.json"
    path.write_bytes(schedule.to_json())
    services = {"silent": silent_service, "wrong": wrong_service, "closed": "http://127.0.0.1:9"}
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


_SENSELESS: list[tuple[dict[str, Any], str]] = [
    ({"service": "http://127.0.0.1:9"}, "service and job go together"),
    ({"backward_passes_per_step": 0}, "at least 1 is needed"),
    ({"compression": "zip"}, "none, fp16, bf16 are supported"),
]


def _refusals(_rank: int, _size: int) -> list[str]:
    model = build("conv")
    messages = []
    for options, _ in _SENSELESS:
        try:
            wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, **options)
        except InvalidOptions as error:
            messages.append(str(error))
    return messages


def test_options_that_make_no_sense_are_refused() -> None:
    """The message says what would do."""
    (messages,) = run_ranks(_refusals, 1)
    for message, (_, said) in zip(messages, _SENSELESS, strict=True):
        assert said in message
