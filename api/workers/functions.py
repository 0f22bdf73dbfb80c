"""What worker processes do: read bodies and solve. Plain functions from bytes to bytes.

Everything that can take long or much memory for a large profile is here, so that it never runs in
the process that answers requests.
"""

import csv
import io
import json
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pace.api.earlier_forms import (
    current_schedule,
    current_what_if,
    read_options,
    read_question,
    stored_options,
    stored_question,
    stored_what_if,
)
from pace.api.errors import ContentTooLarge, InvalidRequest, NotInstalled
from pace.api.received import ReceivedProfile, ReceivedRequest, ReceivedWhatIf
from pace.api.workers.ambiguous_documents import refuse_lookalikes, refuse_repeated_keys
from pace.client.documents import (
    PolicyResult,
    ScheduleRequest,
    SimulationRequest,
    SimulationResult,
)
from pace.client.page_documents import WindowGroup, WindowRequest, WindowResult, WindowRow
from pace.client.what_if_documents import WhatIfQuestion, WhatIfRequest
from pace.collector import paused_collector
from pace.documents.base import explain
from pace.documents.options import Options
from pace.documents.profile import Profile, parse_profile
from pace.documents.profile_json import compact_profile
from pace.documents.schedule import parse_schedule
from pace.errors import InvalidOptions
from pace.planning.optimize import optimize
from pace.simulation import SimulationOptions, simulate
from pace.view.chart import plot
from pace.view.op_times import phases_of
from pace.view.perfetto import chrome_trace
from pace.view.window import Window, lay_out, lay_out_policy
from pace.whatif import what_if
from pace.whatif.target import BRACKETS, answer_all

_TELL_EVERY_S = 0.3
_DIGITS = 9  # a nanosecond: more would only make charts longer to send


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """How much a body may hold once it is decompressed."""

    max_bytes: int
    max_ops: int
    max_gradients: int
    max_cells: int


# The collector rests until what was read is gone: it would look at every object of it, to find nothing.
@paused_collector()
def read_request(body: bytes, gzipped: bool, limits: ReadLimits) -> ReceivedRequest:
    """Parse and validate the body of a schedule request.

    Raises
    ------
    InvalidProfile, InvalidOptions, InvalidRequest, ContentTooLarge
        With the validator's message.
    """
    body = decompressed(body, limits.max_bytes) if gzipped else body
    try:
        request = ScheduleRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        _explain(body, error)
        raise InvalidRequest(explain(error)) from None
    refuse_repeated_keys(body)
    profile = None if request.profile is None else receive(request.profile, limits)
    options = stored_options(request.options)
    profile_sha256 = request.profile_id if profile is None else profile.sha256
    assert profile_sha256 is not None
    return ReceivedRequest(job=request.job, profile_sha256=profile_sha256, profile=profile, options=options)


@paused_collector()
def read_what_if(body: bytes, gzipped: bool, limits: ReadLimits) -> ReceivedWhatIf:
    """Parse and validate the body of a what-if request.

    Raises
    ------
    InvalidProfile, InvalidOptions, InvalidRequest, ContentTooLarge
        With the validator's message; a grid beyond the limit is too large.
    """
    body = decompressed(body, limits.max_bytes) if gzipped else body
    try:
        request = WhatIfRequest.model_validate_json(body, strict=True)
    except ValidationError as error:
        _explain(body, error)
        raise InvalidRequest(explain(error)) from None
    refuse_repeated_keys(body)
    grid = request.grid.grid()
    searched = 0
    if request.target_efficiency is not None:
        searched = grid.num_cells // max(len(grid.bandwidth_gbps), 1) * BRACKETS
    if grid.num_cells + searched > limits.max_cells:
        counted = f"{grid.num_cells + searched} simulations"
        raise ContentTooLarge(f"the grid asks for {counted}; this service takes {limits.max_cells}")
    profile = None
    if request.profile is not None:
        grid.refuse_misfits(request.profile)
        profile = receive(request.profile, limits)
    profile_sha256 = request.profile_id if profile is None else profile.sha256
    assert profile_sha256 is not None
    question = WhatIfQuestion(grid=request.grid, target_efficiency=request.target_efficiency)
    return ReceivedWhatIf(
        profile_sha256=profile_sha256,
        profile=profile,
        options=stored_question(question),
        num_cells=grid.num_cells,
    )


@paused_collector()
def read_profile(body: bytes, gzipped: bool, limits: ReadLimits) -> ReceivedProfile:
    """Parse and validate a profile; raises InvalidProfile, InvalidRequest and ContentTooLarge."""
    body = decompressed(body, limits.max_bytes) if gzipped else body
    profile = parse_profile(body)
    refuse_repeated_keys(body)
    return receive(profile, limits)


def read_file(
    function: Callable[..., Any], path: Path, gzipped: bool, limits: ReadLimits, *arguments: str
) -> Any:
    """Do what a function here does with a body, with one that is in a file."""
    return function(path.read_bytes(), gzipped, limits, *arguments)


def solve(profile_document: bytes, options: str) -> bytes:
    """Return the schedule document for a stored profile."""
    profile = parse_profile(zlib.decompress(profile_document))
    return optimize(profile, read_options(options)).to_json()


class DoneCount:
    """Counts what is done, and tells it now and then."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._told_at = time.monotonic()
        self.num_done = 0

    def __call__(self, num_more: int) -> None:
        """Count so many more."""
        self.num_done += num_more
        if time.monotonic() >= self._told_at + _TELL_EVERY_S:
            self._told_at = time.monotonic()
            self._tell(self.num_done)


def answer_what_if(profile_document: bytes, options: str, tell: Callable[[int], None]) -> bytes:
    """Return the JSON of a WhatIfDocument, telling now and then how many cells are done."""
    profile = parse_profile(zlib.decompress(profile_document))
    question = read_question(options)
    grid = question.grid.grid()
    count = DoneCount(tell)
    # One process: the grid shares a machine with solves, and what is cancelled ends with its process.
    result = what_if(profile, grid, processes=1, progress=count)
    if question.target_efficiency is not None:
        tell(count.num_done)
        result = replace(result, answers=answer_all(profile, grid, question.target_efficiency))
    return stored_what_if(json.dumps(result.to_document(), allow_nan=False, separators=(",", ":")).encode())


def what_if_csv(document: bytes) -> bytes:
    """Return a stored what-if's cells as CSV, as ``WhatIf.to_csv`` writes them."""
    text = io.StringIO()
    cells = json.loads(current_what_if(document))["cells"]
    writer = csv.DictWriter(text, fieldnames=list(cells[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    return text.getvalue().encode()


def timeline(profile_document: bytes, schedule_document: bytes) -> bytes:
    """Return the predicted window as a Chrome trace."""
    profile = parse_profile(zlib.decompress(profile_document))
    trace = chrome_trace(profile, parse_schedule(current_schedule(schedule_document)))
    return json.dumps(trace, separators=(",", ":")).encode()


def chart(profile_document: bytes, schedule_document: bytes) -> bytes:
    """Return the predicted window as an SVG picture."""
    try:
        import matplotlib  # noqa: F401  (is there? plot imports it)
    except ImportError:
        detail = "charts need matplotlib, which is not installed with this service (pace[plot])"
        raise NotInstalled(detail) from None
    profile = parse_profile(zlib.decompress(profile_document))
    schedule = parse_schedule(current_schedule(schedule_document))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chart.svg"
        plot(profile, schedule, path)
        return path.read_bytes()


def windows(profile_document: bytes, schedule_document: bytes | None, request: WindowRequest) -> bytes:
    """Return the JSON of a WindowResult."""
    profile = parse_profile(zlib.decompress(profile_document))
    rows = []
    if schedule_document is not None:
        rows.append(lay_out(profile, parse_schedule(current_schedule(schedule_document))))
    rows += [lay_out_policy(profile, name) for name in request.policies]
    replay = profile.metadata.get("replay")
    recorded = sorted(replay["recorded_s"]) if isinstance(replay, dict) and replay.get("recorded_s") else None
    cost = profile.allreduce.model_dump(mode="json")
    bandwidth = cost.get("bandwidth_bytes_per_s")
    result = WindowResult(
        profile_id=profile.sha256,
        name=profile.name,
        workers=profile.workers,
        update=profile.update,
        cost=cost["kind"],
        bandwidth_gbps=None if bandwidth is None else bandwidth * 8e-9,
        latency_s=cost.get("latency_s"),
        compute_s=float(profile.timing.compute_s),
        recorded_s=None if recorded is None else float(recorded[len(recorded) // 2]),
        op_names=tuple(op.name for op in profile.ops),
        op_phases=phases_of(profile),
        rows=tuple(_window_row(row) for row in rows),
    )
    return result.model_dump_json().encode()


def _window_row(window: Window) -> WindowRow:
    moved = window.transfers
    return WindowRow(
        name=window.name,
        iteration_s=window.iteration_s,
        barrier=window.barrier,
        lanes=window.lanes,
        op_lanes=window.op_lanes,
        op_starts_s=tuple(window.times.starts_s.round(_DIGITS).tolist()),
        op_ends_s=tuple(window.times.ends_s.round(_DIGITS).tolist()),
        links=window.links,
        groups=tuple(
            WindowGroup(
                name=group.name,
                gradients=group.gradients,
                size_bytes=group.size_bytes,
                critical=group.critical,
            )
            for group in window.cargo
        ),
        transfer_links=tuple(each.link for each in moved),
        transfer_groups=tuple(each.cargo for each in moved),
        transfer_bytes=tuple(each.size_bytes for each in moved),
        transfer_starts_s=tuple(round(each.start_s, _DIGITS) for each in moved),
        transfer_ends_s=tuple(round(each.end_s, _DIGITS) for each in moved),
    )


def simulation(profile_document: bytes, request: SimulationRequest) -> bytes:
    """Return the JSON of a SimulationResult."""
    profile = parse_profile(zlib.decompress(profile_document))
    options = SimulationOptions(iterations=request.iterations, jitter=request.jitter, seed=request.seed)
    results = tuple(
        PolicyResult(policy=name, iteration_s=each.iteration_s, iterations_s=each.iterations_s)
        for name, each in simulate(profile, request.policies, options).items()
    )
    return SimulationResult(profile_id=profile.sha256, results=results).model_dump_json().encode()


def canonical_json(document: BaseModel, *, exclude_none: bool = False) -> str:
    """Return the same text for equal documents, if wanted without the fields that say nothing."""
    fields = document.model_dump(mode="json", exclude_none=exclude_none)
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def decompressed(body: bytes, max_bytes: int) -> bytes:
    """Undo gzip; raises InvalidRequest, and ContentTooLarge beyond `max_bytes`."""
    decompressor = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        content = decompressor.decompress(body, max_bytes + 1)
    except zlib.error:
        raise InvalidRequest("the body is not gzip, as Content-Encoding says") from None
    if len(content) > max_bytes:
        raise ContentTooLarge(f"the body is larger than {max_bytes} bytes once decompressed")
    if not decompressor.eof or decompressor.unused_data:
        raise InvalidRequest("the body is not one whole gzip stream")
    return content


def receive(profile: Profile, limits: ReadLimits) -> ReceivedProfile:
    """Return a valid profile as it is stored; raises ContentTooLarge beyond the limits, InvalidProfile."""
    for what, count, limit in (
        ("ops", len(profile.ops), limits.max_ops),
        ("gradients", len(profile.gradients), limits.max_gradients),
    ):
        if count > limit:
            raise ContentTooLarge(f"the profile has {count} {what}; this service takes {limit}")
    refuse_lookalikes(profile)
    document = compact_profile(profile).encode()
    return ReceivedProfile(
        sha256=profile.sha256,
        name=profile.name,
        fingerprint=profile.fingerprint,
        num_ops=len(profile.ops),
        num_gradients=len(profile.gradients),
        size_bytes=len(document),
        document=zlib.compress(document, level=1),
    )


def _explain(body: bytes, error: ValidationError) -> None:
    # The profile's own parser names the op or gradient at fault; pydantic knows only its place.
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    places = {
        fault["loc"][0] for fault in error.errors(include_url=False, include_input=False) if fault["loc"]
    }
    if "profile" in places and "profile" in document:
        parse_profile(json.dumps(document["profile"]))
    if "options" in places and "options" in document:
        try:
            Options.model_validate_json(json.dumps(document["options"]), strict=True)
        except ValidationError as fault:
            raise InvalidOptions(explain(fault)) from None
