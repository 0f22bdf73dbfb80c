"""The predicted window of a schedule of push and pull as a Chrome trace: a worker's ops and connections."""

from typing import Any

import numpy as np

from pace.documents.profile import Profile
from pace.documents.push_pull_schedule import PushPullSchedule
from pace.view.chrome_trace import ChromeTrace
from pace.view.timeline import lanes_of, op_times_after


def exchange_trace(profile: Profile, schedule: PushPullSchedule) -> dict[str, Any]:
    """Return the predicted window of one worker as a Chrome trace document (JSON-ready).

    Each server has two rows, for pushes to it and pulls from it; an arrow leads from the op that completes a
    segment's group through its push and its pull to the first op that waits for it.
    """
    back_s = [group.ready_s for group in schedule.groups]
    for segment in schedule.segments:
        back_s[segment.group] = max(back_s[segment.group], segment.pull_end_s)
    group_of = {name: number for number, group in enumerate(schedule.groups) for name in group.gradients}
    times = op_times_after(profile, {name: back_s[group] for name, group in group_of.items()})
    lanes = lanes_of(profile, times)
    first = len(lanes.names)
    trace = ChromeTrace(f"predicted: {profile.name}")
    servers = range(schedule.cluster.exchange.servers)
    connections = [f"{way} server {server}" for server in servers for way in ("push to", "pull from")]
    for row, name in enumerate([*lanes.names, *connections]):
        trace.add_row(row, name)
    for number, op in enumerate(profile.ops):
        trace.add_slice(
            lanes.of_op[number], op.name, float(times.starts_s[number]), float(times.ends_s[number])
        )
    producers = _last_producers(profile, group_of, times.ends_s.tolist(), len(back_s))
    consumers = _first_consumers(profile, group_of, times.starts_s.tolist(), len(back_s))
    for number, segment in enumerate(schedule.segments):
        arguments = {
            "group": segment.group,
            "priority": segment.priority,
            "offset_bytes": segment.offset_bytes,
            "size_bytes": segment.size_bytes,
            "gradients": list(schedule.groups[segment.group].gradients),
        }
        name = f"group {segment.group}"
        push, pull = first + 2 * segment.link, first + 2 * segment.link + 1
        trace.add_slice(push, name, segment.push_start_s, segment.push_end_s, arguments)
        trace.add_slice(pull, name, segment.pull_start_s, segment.pull_end_s, arguments)
        producer, consumer = producers[segment.group], consumers[segment.group]
        steps = [(push, segment.push_start_s), (pull, segment.pull_start_s)]
        if producer is not None:
            steps.insert(0, (lanes.of_op[producer], float(times.ends_s[producer])))
        if consumer is not None:
            steps.append((lanes.of_op[consumer], float(times.starts_s[consumer])))
        trace.add_flow(number, name, steps)
    trace.add_backlog(
        [
            *((group.ready_s, group.size_bytes) for group in schedule.groups),
            *((segment.pull_end_s, -segment.size_bytes) for segment in schedule.segments),
        ]
    )
    return trace.document(profile_sha256=profile.sha256)


def _last_producers(
    profile: Profile, group_of: dict[str, int], ends_s: list[float], num_groups: int
) -> list[int | None]:
    found: list[int | None] = [None] * num_groups
    for gradient, op in zip(profile.gradients, profile.producers, strict=True):
        group = group_of[gradient.name]
        known = found[group]
        if known is None or ends_s[op] > ends_s[known]:
            found[group] = int(op)
    return found


def _first_consumers(
    profile: Profile, group_of: dict[str, int], starts_s: list[float], num_groups: int
) -> list[int | None]:
    found: list[int | None] = [None] * num_groups
    for number in np.argsort(starts_s, kind="stable").tolist():
        for name in profile.ops[number].waits_for:
            if found[group_of[name]] is None:
                found[group_of[name]] = number
    return found
