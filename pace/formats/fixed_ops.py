"""A step's collectives that no schedule moves, as ops of a profile on streams of their own."""

from collections import defaultdict
from collections.abc import Sequence

from pace.documents.profile import Op
from pace.formats.step_records import StepCollective, TrainingStep


class FixedOps:
    """The ops, and what they leave to the ops around them.

    Where an op was seen to wait for a collective, the collective ends so long after the op before that one:
    the recorded step comes out again, though the host's order of ops is not always the device's. A collective
    that nothing waited for lasts no longer than the ops beside it.

    Attributes
    ----------
    forward, backward
        Places of ops that a collective follows or precedes, which a profile must keep.
    """

    def __init__(self, step: TrainingStep, updates_s: Sequence[float]) -> None:
        self.forward: set[int] = set()
        self.backward: set[int] = set()
        self._step = step
        self._followed_by: defaultdict[tuple[bool, int], list[str]] = defaultdict(list)
        self._ops: list[tuple[bool, Op]] = []
        clear_s = self._clear_times(updates_s)
        lanes_s: dict[str, float] = {}
        for number, call in enumerate(sorted(step.collectives, key=lambda call: call.of_forward)):
            deps = self._deps(call)
            begin = (
                clear_s[call.of_forward, 0]
                if call.after is None
                else clear_s[call.of_forward, call.after + 1]
            )
            begin = max(begin, lanes_s.get(call.lane, 0.0))
            end = begin + call.duration_s
            if call.waited_s is not None:
                room = clear_s[call.before or (True, len(step.forward))]
                end = room + call.waited_s if call.waited_s else min(end, room)
            end = lanes_s[call.lane] = max(end, begin)
            op = Op(
                name=f"{_PREFIX[call.of_forward]}/collective {number:02d}.{call.name}",
                kind="communication",
                duration_s=end - begin,
                duration_std_s=call.duration_std_s,
                deps=deps,
                stream=call.lane,
            )
            if call.before is not None:
                (self.forward if call.before[0] else self.backward).add(call.before[1])
                self._followed_by[call.before].append(op.name)
            self._ops.append((call.of_forward, op))

    def _clear_times(self, updates_s: Sequence[float]) -> dict[tuple[bool, int], float]:
        """Return when every op could start but for its collectives, and each pass's end, on one stream."""
        waits: defaultdict[tuple[bool, int], float] = defaultdict(float)
        for call in self._step.collectives:
            if call.before is not None:
                waits[call.before] = max(waits[call.before], call.waited_s or 0.0)
        clear: dict[tuple[bool, int], float] = {}
        now = 0.0
        for of_forward, ops in ((False, self._step.backward), (True, self._step.forward)):
            for place, op in enumerate(ops):
                clear[of_forward, place] = now
                now += waits[of_forward, place] + op.duration_s + (updates_s[place] if of_forward else 0.0)
            clear[of_forward, len(ops)] = now
        return clear

    def _deps(self, call: StepCollective) -> tuple[str, ...]:
        if call.after is not None:
            (self.forward if call.of_forward else self.backward).add(call.after)
            ops = self._step.forward if call.of_forward else self._step.backward
            return (f"{_PREFIX[call.of_forward]}/{ops[call.after].name}",)
        if not call.of_forward:
            return ()
        last = len(self._step.backward) - 1
        self.backward.add(last)
        return (f"bwd/{self._step.backward[last].name}",)

    def before(self, *, of_forward: bool, place: int) -> list[str]:
        """Return the names of the collectives that an op waits for."""
        return self._followed_by.get((of_forward, place), [])

    def ops(self, *, of_forward: bool) -> list[Op]:
        """Return the collectives of a pass."""
        return [op for forward, op in self._ops if forward == of_forward]


_PREFIX = {False: "bwd", True: "fwd"}
