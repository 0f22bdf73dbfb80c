"""What worker processes do for charts: windows of a schedule and of policies, laid out in time."""

import zlib

from pace.client.page_documents import WindowGroup, WindowRequest, WindowResult, WindowRow
from pace.documents.any_schedule import parse_any_schedule
from pace.documents.profile import parse_profile
from pace.view.windows import LaidOutWindow, lay_out_policy, lay_out_schedule, phases_of

_DIGITS = 9  # a nanosecond: more would only make the answer longer


def windows(profile_document: bytes, schedule_document: bytes | None, request: WindowRequest) -> bytes:
    """Return the JSON of a WindowResult."""
    profile = parse_profile(zlib.decompress(profile_document))
    rows = []
    if schedule_document is not None:
        rows.append(lay_out_schedule(profile, parse_any_schedule(schedule_document)))
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
        rows=tuple(_row(row) for row in rows),
    )
    return result.model_dump_json().encode()


def _row(window: LaidOutWindow) -> WindowRow:
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
            for group in window.carried
        ),
        transfer_links=tuple(each.link for each in moved),
        transfer_groups=tuple(each.carried for each in moved),
        transfer_bytes=tuple(each.size_bytes for each in moved),
        transfer_starts_s=tuple(round(each.start_s, _DIGITS) for each in moved),
        transfer_ends_s=tuple(round(each.end_s, _DIGITS) for each in moved),
    )
