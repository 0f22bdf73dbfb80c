"""Collectives that no schedule moves, in recorded steps: what each followed, and what waited for it how long.

An all-to-all, an all-gather, a reduce-scatter or a broadcast keeps its place between the ops around it. A
trace does not record what waited for what, so an order that was kept is taken as needed: a call follows the
last op that had ended when it started, and the first op that starts after its end follows the call.
"""

import bisect
from collections.abc import Iterable, Sequence
from operator import attrgetter

from pace.formats.busy_time import BusyTime
from pace.formats.kineto_device import PlacedKernel
from pace.formats.kineto_records import FixedCall, KinetoStep, Part, Place
from pace.formats.kineto_trace import HostOp, KinetoTrace, Thread
from pace.formats.recorded_collectives import ALL_REDUCE, HOST_LANE, RecordedCall


def note_fixed_calls(steps: Sequence[KinetoStep], calls: Iterable[RecordedCall]) -> None:
    """Give every step the collectives that it issued, all-reduces left out."""
    starts = [step.start_s for step in steps]
    for call in sorted(calls, key=attrgetter("start_s")):
        number = bisect.bisect_right(starts, call.issued_s) - 1
        if call.name == ALL_REDUCE or number < 0 or call.issued_s >= steps[number].end_s:
            continue
        steps[number].fixed.append(
            FixedCall(
                name=call.name.strip("_"),
                issued_s=call.issued_s,
                start_s=call.start_s,
                end_s=call.end_s,
                lane=call.lane,
                part=steps[number].part_at(call.issued_s),
            )
        )


class FollowedCalls:
    """Finds, kernel after kernel, the calls that ended before it and that no kernel has followed yet."""

    def __init__(self, steps: Sequence[KinetoStep], reduces: BusyTime) -> None:
        calls = [(call, number) for number, step in enumerate(steps) for call in step.fixed]
        self._reduces = reduces
        self._coming = sorted(calls, key=lambda item: -item[0].end_s)
        self._ended: list[tuple[FixedCall, int]] = []
        parts: tuple[Part, ...] = ("update", "forward", "backward")
        self._places: dict[int, Place] = {
            id(op): (part, at) for step in steps for part in parts for at, op in enumerate(step.ops_of(part))
        }

    def end_s(self, kernel: PlacedKernel, busy_until_s: float) -> float:
        """Return until when a kernel waited for these calls, `busy_until_s` if it did not.

        A kernel that was launched before a call was issued cannot have waited for it.
        """
        while self._coming and self._coming[-1][0].end_s <= kernel.start_s:
            self._ended.append(self._coming.pop())
        latest = busy_until_s
        left = []
        for call, number in self._ended:
            before_it = kernel.launch_s is not None and kernel.launch_s < call.issued_s
            if kernel.step is None or kernel.step < number or before_it:
                left.append((call, number))
                continue
            if call.end_s > busy_until_s and not call.waited_s:
                # Held up by all-reduces: a prediction adds them anew.
                held_up = self._reduces.within(busy_until_s, call.start_s)
                call.waited_s = max(call.end_s - busy_until_s - held_up, 0.0)
            latest = max(latest, call.end_s)
            if kernel.is_copy:  # the op behind it follows the call as well
                left.append((call, number))
            else:
                self._follow(call, kernel, same_step=kernel.step == number)
        self._ended = left
        return latest

    def _follow(self, call: FixedCall, kernel: PlacedKernel, *, same_step: bool) -> None:
        place = None if kernel.op is None else self._places.get(id(kernel.op))
        part, at = place or ("update", 0)
        if call.part == "forward":
            # What comes after the forward pass is the window's end.
            call.before = ("forward", at) if part == "forward" and same_step else None
        elif part != "backward":
            # Updates count for the forward ops that use the parameters.
            call.before = ("forward", at if part == "forward" else 0)
        elif same_step:
            call.before = ("backward", at)


def find_what_calls_followed(step: KinetoStep, ended_s: Sequence[float | None], part: Part) -> None:
    """Note, for the calls of a part, the last of its ops that had ended when they started.

    It comes before every op that follows this call or a later one: two calls never wait for each other.
    """
    calls = [call for call in step.fixed if (call.part == "forward") == (part == "forward")]
    last: dict[object, FixedCall] = {}
    for call in calls:  # a lane's calls end in order, and are followed in order
        earlier = last.get(call.lane)
        if earlier is not None and _is_sooner(call.before, earlier.before):
            call.before = earlier.before
            call.waited_s += earlier.waited_s
        last[call.lane] = call
    limit = len(ended_s)
    for call in reversed(calls):
        if call.before is not None and call.before[0] == part:
            limit = min(limit, call.before[1])
        places = (at for at in range(limit - 1, -1, -1) if _is_over(ended_s[at], call.start_s))
        call.after = next(places, None)


def _is_sooner(place: Place | None, other: Place | None) -> bool:
    return place is not None and other is not None and place[0] == other[0] and place < other


def _is_over(ended_s: float | None, moment_s: float) -> bool:
    return ended_s is not None and ended_s <= moment_s


def measure_on_host(trace: KinetoTrace, steps: Sequence[KinetoStep], calls: Sequence[RecordedCall]) -> None:
    """Work out, for collectives of the host's threads, how long the thread that issued them waited for them.

    It waits while it runs no operator until the call ends. Calls of a device are left out: its host's clock
    does not see them.
    """
    reduces = BusyTime((call.start_s, call.end_s) for call in calls if call.name == ALL_REDUCE)
    threads: dict[Thread, list[HostOp]] = {}
    for step in steps:
        step.fixed = [call for call in step.fixed if call.lane == HOST_LANE]
        for call in step.fixed:
            call.before, call.after, call.waited_s = None, None, 0.0
            ops = step.ops_of(call.part)
            at = bisect.bisect_right(ops, call.end_s, key=lambda op: op.op.start_s) - 1
            if not ops:
                continue
            thread = ops[max(at, 0)].op.thread
            if thread not in threads:
                threads[thread] = [op for op in trace.ops if op.thread == thread]
            idle_s = _idle_since(threads[thread], call)
            held_up = reduces.within(idle_s, call.start_s)
            call.waited_s = max(call.end_s - idle_s - held_up, 0.0)
            step.fixed_s += call.waited_s
            step.exposed_s += held_up
            if at >= 0:
                ops[at].communication_s += call.end_s - idle_s
            elif call.part == "forward":
                step.early_communication_s += call.end_s - idle_s
            following = at if at >= 0 and call.end_s < ops[at].host_end_s else at + 1
            if call.part == "update" or (call.part == "backward" and following == len(ops)):
                call.before = ("forward", 0)
            elif following < len(ops):
                call.before = (call.part, following)
        find_what_calls_followed(step, [op.host_end_s for op in step.forward], "forward")
        find_what_calls_followed(step, [op.host_end_s for op in step.backward], "backward")


def _idle_since(ops: Sequence[HostOp], call: FixedCall) -> float:
    """Return since when a thread ran nothing until the end of a call, at the earliest its issue."""
    idle = call.issued_s
    first = bisect.bisect_left(ops, call.issued_s, key=attrgetter("start_s"))
    for op in ops[first : bisect.bisect_left(ops, call.end_s, key=attrgetter("start_s"))]:
        idle = max(idle, min(op.end_s, call.end_s))
    return min(idle, call.end_s)
