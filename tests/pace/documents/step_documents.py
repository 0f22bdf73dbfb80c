"""Steps documents for tests: worked instances by hand, and random ones for Hypothesis."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from pace.documents.steps import (
    LinkDiscipline,
    ParsingOverhead,
    StepLink,
    StepsDocument,
    StepsOp,
    StepTimes,
)

MB = 1_000_000


def document(
    ops: Sequence[tuple[Any, ...]],
    durations: Sequence[Sequence[float]],
    bytes_per_s: float,
    *,
    window_bytes: int | None = None,
    discipline: LinkDiscipline = "fifo",
    **fields: Any,
) -> StepsDocument:
    """Return a document of ops (name, resource, size or None, deps, server)."""
    return StepsDocument(
        name="worked",
        ops=tuple(
            StepsOp(
                name=name,
                resource=resource,
                size_bytes=size,
                deps=tuple(more[0]) if more else (),
                server=more[1] if len(more) > 1 else None,
            )
            for name, resource, size, *more in ops
        ),
        steps=tuple(StepTimes(duration_s=tuple(map(float, times))) for times in durations),
        link=StepLink(bytes_per_s=bytes_per_s, window_bytes=window_bytes, discipline=discipline),
        **fields,
    )


def pull_compute_push(compute_s: float = 1.0, update_s: float = 0.5) -> StepsDocument:
    """Return test B's step: 10 MB down, compute, 10 MB up and an update, at 10 MB/s."""
    ops = (
        ("down/a", "downlink", 10 * MB),
        ("compute", "worker", None, ("down/a",)),
        ("up/a", "uplink", 10 * MB, ("compute",)),
        ("update/a", "ps", None, ("up/a",)),
    )
    return document(ops, [[0, compute_s, 0, update_s]], 10 * MB)


EIGHTHS = st.integers(0, 12).map(lambda count: count / 8)


@st.composite
def steps_documents(draw: st.DrawFn) -> StepsDocument:
    """Draw a small document: ties, empty transfers, streams, windows and compute roots are frequent."""
    servers = draw(st.integers(1, 3))
    count = draw(st.integers(1, 8))
    ops = []
    for number in range(count):
        resource = draw(st.sampled_from(["downlink", "downlink", "worker", "worker", "uplink", "ps"]))
        transfer = resource in ("downlink", "uplink")
        ops.append(
            StepsOp(
                name=f"op/{number}",
                resource=resource,
                size_bytes=draw(st.integers(0, 6)) if transfer else None,
                server=None if resource == "worker" else draw(st.integers(0, servers - 1)),
                stream=None if transfer else draw(st.sampled_from([None, None, "s", "t"])),
                deps=tuple(f"op/{at}" for at in range(number) if draw(st.integers(0, 3)) == 0),
            )
        )
    ops.append(StepsOp(name="op/last", resource="worker", deps=("op/0",)))
    ops = draw(st.permutations(ops))
    times = st.lists(EIGHTHS, min_size=count + 1, max_size=count + 1).map(tuple)
    steps = tuple(
        StepTimes(
            duration_s=tuple(
                # The last op always takes some time, so that a step does.
                max(seconds, 0.125) if op.name == "op/last" else seconds
                for op, seconds in zip(ops, draw(times), strict=True)
            ),
            start_s=draw(st.one_of(st.none(), times)),
        )
        for _ in range(draw(st.integers(1, 2)))
    )
    discipline = draw(
        st.sampled_from(["fifo", "window", "first-service-first", "adaptive", "tic", "reverse"])
    )
    overhead = ParsingOverhead(
        seconds_per_byte=draw(st.sampled_from([0.0, 0.125])), seconds=draw(st.sampled_from([0.0, 0.25]))
    )
    return StepsDocument(
        name="random",
        servers=servers,
        ops=tuple(ops),
        steps=steps,
        link=StepLink(
            bytes_per_s=draw(st.integers(1, 4)),
            window_bytes=draw(st.integers(1, 4)),
            discipline=discipline,
        ),
        overhead=overhead,
    )
