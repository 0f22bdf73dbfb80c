"""Speed of the service, compared with a bare Starlette route that returns the same bytes.

    .venv/bin/python -m benchmarks service [reads|posts|storm|large|start ...] [--json OUT]

The parts, with their durations on an idle machine:

- ``reads``: GET of a stored schedule, by ``wrk``; 100 s
- ``posts``: POST of 164 gradients, without the time of the solver; 15 s
- ``start``: time to the first answer, and memory while idle; 60 s
- ``storm`` and ``large``: many equal requests, and one large request; 15 s each

Server and client run on this machine, over loopback. The service and Starlette are measured in turns, in the
same run, each with one process and the same log level.
"""

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.harness.conditions import study_parser, write_json
from benchmarks.harness.prerequisites import require_program
from benchmarks.harness.serving import events, large_profile, service, starlette
from pace import Profile
from pace.models import build

JSON = {"Content-Type": "application/json"}
CONNECTIONS = 16
STORM = 1000
STORED_ANSWER = """
body = open({path!r}, "rb").read()
async def answer(request):
    return Response(body, media_type="application/json")
"""

PARSED_ANSWER = """
async def answer(request):
    json.loads(await request.body())
    return Response(b"{}", 201, media_type="application/json")
"""

VALIDATED_ANSWER = """
from pace.client.documents import ScheduleRequest
async def answer(request):
    ScheduleRequest.model_validate_json(await request.body(), strict=True)
    return Response(b"{}", 201, media_type="application/json")
"""
NUM_GRADIENTS = 164
NUM_POSTS = 30
NUM_FIRST_POSTS = 3
IDLE_S = 5.0


def wrk(url: str, seconds: int, delay_ms: float = 0.0) -> tuple[float, float]:
    """Return requests per second and the 99th percentile in seconds."""
    script = f"function delay() return {round(delay_ms)} end" if delay_ms >= 1 else ""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
        file.write(script)
        file.flush()
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", "-s", file.name, url]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in text:
        raise SystemExit(text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    assert rate is not None
    assert p99 is not None
    return float(rate[1]), float(p99[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[p99[2]]


def reads(folder: Path, url: str, seconds: int, rounds: int, profile: Profile) -> dict[str, Any]:
    """GET of a stored schedule, at full speed and at half of the slower one's."""
    posted = httpx.post(
        f"{url}/v1/schedules", json={"profile": profile.model_dump(mode="json")}, timeout=120, trust_env=False
    )
    posted.raise_for_status()
    path = posted.headers["location"]
    stored = folder / "body.json"
    stored.write_bytes(posted.content)
    with starlette(folder, STORED_ANSWER.format(path=str(stored))) as bare_url:
        full = [(wrk(url + path, seconds)[0], wrk(bare_url + path, seconds)[0]) for _ in range(rounds)]
        half_rate = statistics.median(min(rates) for rates in full) / 2
        delay_ms = 1000 * CONNECTIONS / half_rate
        calm = [
            (wrk(url + path, seconds, delay_ms), wrk(bare_url + path, seconds, delay_ms))
            for _ in range(rounds)
        ]
    return {
        "body_bytes": len(posted.content),
        "requests_per_s": statistics.median(ours for ours, _ in full),
        "bare_requests_per_s": statistics.median(theirs for _, theirs in full),
        "ratio": statistics.median(ours / theirs for ours, theirs in full),
        "half_load_requests_per_s": statistics.median(ours[0] for ours, _ in calm),
        "p99_s": statistics.median(ours[1] for ours, _ in calm),
        "bare_p99_s": statistics.median(theirs[1] for _, theirs in calm),
        "p99_ratio": statistics.median(ours[1] / theirs[1] for ours, theirs in calm),
    }


def posts(folder: Path, url: str, profile: Profile) -> dict[str, Any]:
    """POST of new profiles, beyond the solve, beside Starlette that parses or validates them."""
    document = _with_gradients(profile.model_dump(mode="json"), NUM_GRADIENTS)
    with (
        starlette(folder, PARSED_ANSWER) as parsing_url,
        starlette(folder, VALIDATED_ANSWER) as validating_url,
        httpx.Client(headers=JSON, timeout=120, trust_env=False) as http,
    ):
        times: dict[str, list[float]] = {url: [], parsing_url: [], validating_url: []}
        for number in range(NUM_POSTS + NUM_FIRST_POSTS):
            body = json.dumps({"profile": document | {"name": f"new {number}"}}).encode()
            for each, taken in times.items():
                before = time.perf_counter()
                http.post(f"{each}/v1/schedules", content=body).raise_for_status()
                taken.append(time.perf_counter() - before)
    totals, parsing, validating = (taken[NUM_FIRST_POSTS:] for taken in times.values())
    solves = [entry["solve_s"] for entry in events(folder) if entry.get("event") == "solved"][-NUM_POSTS:]
    beyond = [total - solve for total, solve in zip(totals, solves, strict=True)]
    found: dict[str, Any] = {
        "gradients": NUM_GRADIENTS,
        "body_bytes": len(body),
        "posts": NUM_POSTS,
        "median_s": statistics.median(totals),
        "median_solve_s": statistics.median(solves),
        "median_beyond_solve_s": statistics.median(beyond),
    }
    for bare, taken in (("parsing", parsing), ("validating", validating)):
        ratios = [mine / theirs for mine, theirs in zip(beyond, taken, strict=True)]
        found[f"{bare}_median_s"] = statistics.median(taken)
        found[f"ratio_to_{bare}"] = statistics.median(ratios)
    return found


def _with_gradients(profile: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a profile with so many gradients: those that are missing are small, of the first's producer."""
    gradients = list(profile["gradients"])
    while len(gradients) < count:
        gradients.append(gradients[0] | {"name": f"more {len(gradients)}", "size_bytes": 4096})
    return profile | {"gradients": gradients[:count]}


def storm(folder: Path, url: str, profile: Profile) -> dict[str, Any]:
    """Start a thousand workers at once; each asks for the same new schedule over a connection of its own."""
    body = json.dumps({"profile": profile.replace(name="storm").model_dump(mode="json"), "job": "storm"})
    head = (
        "POST /v1/schedules HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    port = int(url.rpartition(":")[2])

    async def ask(start: asyncio.Event) -> tuple[int, int, float]:
        await start.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((head + body).encode())
        await writer.drain()
        answer = await reader.read()
        writer.close()
        return int(answer.split(b" ", 2)[1]), hash(answer.partition(b"\r\n\r\n")[2]), time.perf_counter()

    async def ask_all() -> tuple[list[tuple[int, int, float]], float]:
        start = asyncio.Event()
        asked = [asyncio.create_task(ask(start)) for _ in range(STORM)]
        await asyncio.sleep(0.1)
        before = time.perf_counter()
        start.set()
        return await asyncio.gather(*asked), before

    solved_before = sum(entry.get("event") == "solved" for entry in events(folder))
    answers, before = asyncio.run(ask_all())
    return {
        "workers": STORM,
        "body_bytes": len(body),
        "failed": sum(status != 201 for status, _, _ in answers),
        "different_answers": len({body for _, body, _ in answers}),
        "solves": sum(entry.get("event") == "solved" for entry in events(folder)) - solved_before,
        "last_answer_s": max(end for _, _, end in answers) - before,
    }


def large(url: str) -> dict[str, Any]:
    """Send 100,000 ops and 10,000 gradients while others ask for health."""
    profile = large_profile()
    ops, gradients = profile["ops"], profile["gradients"]
    body = json.dumps({"profile": profile}).encode()

    async def send() -> tuple[httpx.Response, float, list[float]]:
        async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as http:
            await http.get("/metrics")
            before = time.perf_counter()
            posting = asyncio.create_task(http.post("/v1/schedules", content=body, headers=JSON))
            health = []
            while not posting.done():
                asked = time.perf_counter()
                (await http.get("/healthz")).raise_for_status()
                health.append(time.perf_counter() - asked)
                await asyncio.sleep(0.01)
            return await posting, time.perf_counter() - before, health

    answer, seconds, health = asyncio.run(send())
    metrics = httpx.get(f"{url}/metrics", trust_env=False).text
    lag = re.search(r"^pace_event_loop_lag_max_seconds ([\d.e-]+)", metrics, re.MULTILINE)
    assert lag is not None
    return {
        "ops": len(ops),
        "gradients": len(gradients),
        "body_bytes": len(body),
        "status": answer.status_code,
        "answer_bytes": len(answer.content),
        "seconds": seconds,
        "health_answers": len(health),
        "health_max_s": max(health),
        "event_loop_blocked_max_s": float(lag[1]),
    }


def start(folder: Path, profile: Profile) -> dict[str, Any]:
    """Start the service with nothing compiled, with everything compiled, and without any request."""
    caches = {
        "NUMBA_CACHE_DIR": folder / "numba",
        "PYTHONPYCACHEPREFIX": folder / "bytecode",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    found: dict[str, Any] = {}
    for state in ("cold", "warm"):
        own = folder / state
        own.mkdir()
        before = time.perf_counter()
        with service(own, variables=caches) as url:
            body = {"profile": profile.model_dump(mode="json")}
            httpx.post(f"{url}/v1/schedules", json=body, timeout=300, trust_env=False).raise_for_status()
            found[f"{state}_first_answer_s"] = time.perf_counter() - before
        subprocess.run(
            [sys.executable, "-c", "from pace.api.workers.kernels import load_kernels; load_kernels()"],
            env=os.environ | {name: str(value) for name, value in caches.items()},
            check=True,
        )
    idle = folder / "idle"
    idle.mkdir()
    with service(idle, variables=caches) as url:
        while httpx.get(f"{url}/readyz", timeout=300, trust_env=False).status_code != 200:
            time.sleep(0.1)
        time.sleep(IDLE_S)
        (serving,) = psutil.Process().children()
        sizes = shared_out_memory(serving)
    return {**found, "idle_memory_mib": sum(sizes) / 2**20, "idle_processes": len(sizes)}


def shared_out_memory(first: psutil.Process) -> list[int]:
    """Return the bytes of a process and of all under it; pages that several have are shared out (PSS)."""
    sizes = []
    for process in (first, *first.children(recursive=True)):
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        assert found is not None
        sizes.append(1024 * int(found[1]))
    return sizes


PARTS = ("reads", "posts", "storm", "large", "start")


def main() -> None:
    """Run some parts, or all, and print a table."""
    parser = study_parser(__doc__, writes_json=True)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"what to measure: {', '.join(PARTS)} (default: all)"
    )
    parser.add_number("--seconds", 5, "duration of one measurement of reads in seconds")
    parser.add_number("--rounds", 5, "number of measurements of reads; the median counts")
    given = parser.parse_args()
    parts = given.parts or PARTS
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no part {', '.join(unknown)}: expected some of {', '.join(PARTS)}")
    if "reads" in parts:
        require_program("wrk", "wrk")
    profile = build("resnet50", device_tflops=10.0, batch=32, workers=8)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if set(parts) - {"start"}:
            with service(folder, rate_limit="", solver_processes=1) as url:
                measured: dict[str, Callable[[], dict[str, Any]]] = {
                    "reads": lambda: reads(folder, url, given.seconds, given.rounds, profile),
                    "posts": lambda: posts(folder, url, profile),
                    "storm": lambda: storm(folder, url, profile),
                    "large": lambda: large(url),
                }
                results |= {part: measure() for part, measure in measured.items() if part in parts}
        if "start" in parts:
            results["start"] = start(folder, profile)
    table = Table("measured", "value", title="service")
    for part, numbers in results.items():
        for key, value in numbers.items():
            table.add_row(f"{part} {key}".strip(), f"{value:.6g}" if isinstance(value, float) else str(value))
    Console().print(table)
    write_json(given.json, results)
