"""The two halves themselves: sums, what they put on the wire, and the plans that say what is sent."""

import threading
from typing import Any, cast

import pytest
import torch

from pace.documents.options import Options
from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions, ScheduleMismatch
from pace.kinds import optimize
from pace.runtime.control.agreement import decode_plan, encode_plan
from pace.runtime.engine.plan import GradientSize
from pace.runtime.engine.sharded_plan import plan_from_sharded_schedule, plan_shards_locally
from tests.runtime.launch import Backend, run_ranks
from tests.runtime.models import build
from tests.runtime.schedules import profile_of, shuffled_schedule, sizes_of
from tests.runtime.training import OPTIMIZERS, meet, trainable, wrap

# One column; matrices without any; several matrices; several chunks of a row.
_COLUMNS = ((1,), (0, 3, 0), (5, 1, 3), (70_001,), (65_536, 9, 80_000))


def _call(transport: Any, half: str, parts: Any) -> None:
    ended = threading.Event()
    errors: list[BaseException | None] = []

    def done(error: BaseException | None) -> None:
        errors.append(error)
        ended.set()

    getattr(transport, half)(parts, half, done)
    assert ended.wait(60)
    assert errors == [None]


def _halve(rank: int, size: int, backend: str, scale: float | None = None) -> Any:
    """Make both halves of several matrices; with `scale`, over the ring that Horovod's jobs have."""
    meet(backend)
    transport: Any
    if backend == "horovod":
        from pace.runtime.transports.horovod import HorovodTransport

        transport = HorovodTransport(timeout_s=60.0)
        if scale is not None:
            transport.scale = scale
            transport.open_halves()
            assert transport.sequencing == "decision"
    else:
        from pace.runtime.transports.gloo import GlooTransport

        transport = GlooTransport(timeout_s=60.0)
    ring = transport.ring if backend != "horovod" else transport._halves and transport._halves.ring
    found = []
    for columns in _COLUMNS:
        everyone = [
            [torch.arange(size * n, dtype=torch.float64).view(size, n) * (each + 1) for n in columns]
            for each in range(size)
        ]
        sums = [sum(parts) * (scale or 1.0) for parts in zip(*everyone, strict=True)]
        # As columns of a wider buffer, as segments are.
        mine = [torch.nn.functional.pad(part, (1, 1))[:, 1:-1] for part in everyone[rank]]
        wire = [ring.sent_bytes if ring else 0]
        _call(transport, "reduce_scatter", mine)
        rows = all(torch.equal(part[rank], whole[rank]) for part, whole in zip(mine, sums, strict=True))
        wire.append(ring.sent_bytes if ring else 0)
        _call(transport, "all_gather", mine)
        whole = all(torch.equal(part, whole) for part, whole in zip(mine, sums, strict=True))
        wire.append(ring.sent_bytes if ring else 0)
        aside = transport.gather_aside(bytes([rank]) * (rank + 1), f"aside.{columns}")
        assert aside == [bytes([each]) * (each + 1) for each in range(size)]
        found.append((rows, whole, wire))
    transport.close(failed=False)
    return found


def test_halves_sum_and_gather_and_save_bytes(transport: str) -> None:
    """Each half of our own ring sends (W - 1) / W of a buffer's bytes, exactly."""
    for found in run_ranks(_halve, 3, transport, backend=cast("Backend", transport)):
        for columns, (rows, whole, (start, middle, end)) in zip(_COLUMNS, found, strict=True):
            assert rows
            assert whole
            if transport == "gloo":
                size_bytes = 3 * sum(columns) * 8
                assert middle - start == end - middle == size_bytes * 2 / 3


@pytest.mark.horovod
def test_horovods_jobs_have_a_ring_of_ours(transport: str) -> None:
    """It saves the bytes that Horovod's own reduce-scatter does not, scales sums, and needs one order."""
    if transport != "horovod":
        pytest.skip("about Horovod")
    for found in run_ranks(_halve, 3, transport, 0.5, backend="horovod"):
        for columns, (rows, whole, (start, middle, end)) in zip(_COLUMNS, found, strict=True):
            assert rows
            assert whole
            assert middle - start == end - middle == 3 * sum(columns) * 8 * 2 / 3


class _Noting:
    """A process group that notes what is asked for and not there yet, at every send and every wait."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.at_sends: list[int] = []
        self.asked_bytes = self.total_bytes = 0
        self.at_waits: list[tuple[int, int]] = []

    def send(self, *call: Any) -> Any:
        self.at_sends.append(self.asked_bytes)
        return self._group.send(*call)

    def recv(self, tensors: list[torch.Tensor], *where: int) -> "_NotingReceive":
        size_bytes = tensors[0].numel() * tensors[0].element_size()
        self.asked_bytes += size_bytes
        self.total_bytes += size_bytes
        return _NotingReceive(self, self._group.recv(tensors, *where), size_bytes)


class _NotingReceive:
    def __init__(self, noting: _Noting, work: Any, size_bytes: int) -> None:
        self._noting, self._work, self._size_bytes = noting, work, size_bytes

    def wait(self) -> None:
        noting = self._noting
        noting.at_waits.append((noting.asked_bytes, noting.total_bytes))
        self._work.wait()
        noting.asked_bytes -= self._size_bytes


def _receive(rank: int, size: int) -> tuple[list[int], list[tuple[int, int]]]:
    meet("gloo")
    from pace.runtime.transports.gloo import GlooTransport

    transport = GlooTransport(timeout_s=60.0)
    ring: Any = transport.ring
    ring._group = noting = _Noting(ring._group)
    parts = [torch.full((size, columns), float(rank)) for columns in (16, 300_000, 16, 16, 300_000, 16)]
    for half in ("reduce_scatter", "all_gather"):
        _call(transport, half, parts)
    transport.close(failed=False)
    return noting.at_sends, noting.at_waits


def test_receives_are_asked_for_ahead_by_bytes() -> None:
    """However small messages between large ones are, two MiB are asked for, or all, and before sends.

    What is asked for after a row was handed to the kernel is heard behind that row.
    """
    for at_sends, at_waits in run_ranks(_receive, 3):
        assert at_sends[0] >= 2 << 20
        half_bytes = at_waits[-1][1] // 2
        for asked, total in at_waits:
            assert asked >= 2 << 20 or total % half_bytes == 0


_GRADIENTS = [
    GradientSize(name="first", size_bytes=40, dtype="float32"),
    GradientSize(name="second", size_bytes=12, dtype="float32"),
    GradientSize(name="third", size_bytes=16, dtype="float64"),
]


def test_a_local_plan_has_the_same_groups_in_both_halves() -> None:
    """Worked by hand: 13 elements on 4 ranks are 4 columns; what is ready first is gathered last."""
    plan = plan_shards_locally(_GRADIENTS, 4)
    assert [shard.gradients for shard in plan.shards] == [("third",), ("second", "first")]
    assert [shard.num_columns for shard in plan.shards] == [1, 4]
    assert [(group.exchange, group.shards, group.size_bytes) for group in plan.groups] == [
        ("reduce-scatter", (0,), 32),
        ("reduce-scatter", (1,), 64),
        ("all-gather", (1,), 64),
        ("all-gather", (0,), 32),
    ]
    assert [segment.group for segment in plan.segments] == [0, 1, 2, 3]
    assert decode_plan(encode_plan(plan)) == plan


def test_a_schedule_in_two_halves_becomes_a_plan_or_is_refused() -> None:
    """Behind a norm reduce-scatters come first; another model or world is named."""
    profile = profile_of(_GRADIENTS, 4).replace(update="global-norm")
    schedule = optimize(profile, Options(exchange="sharded"))
    assert isinstance(schedule, Schedule)
    plan = plan_from_sharded_schedule(schedule, _GRADIENTS, 4)
    halves = [str(plan.groups[segment.group].exchange) for segment in plan.segments]
    assert halves == sorted(halves, reverse=True)
    assert sum(segment.size_bytes for segment in plan.segments) == 2 * sum(
        4 * shard.num_columns * {"float32": 4, "float64": 8}[shard.dtype] for shard in plan.shards
    )
    with pytest.raises(ScheduleMismatch, match=r"another number of workers \(4\) than 3"):
        plan_from_sharded_schedule(schedule, _GRADIENTS, 3)
    with pytest.raises(ScheduleMismatch, match='the model has no gradient "third"'):
        plan_from_sharded_schedule(schedule, _GRADIENTS[:2], 4)
    grown = [*_GRADIENTS[:2], GradientSize(name="third", size_bytes=80, dtype="float64")]
    with pytest.raises(ScheduleMismatch, match="has 10 elements in the model"):
        plan_from_sharded_schedule(schedule, grown, 4)


def _refusals(rank: int, _size: int) -> Any:
    del rank
    said = []
    halves = optimize(profile_of(sizes_of(build("conv")), 2), Options(exchange="sharded"))
    for name, options in (
        ("adafactor", {"sharding": "on"}),
        ("sgd", {"sharding": "on", "compression": "fp16"}),
        ("sgd", {"sharding": "sometimes"}),
        ("sgd", {"max_grad_norm": 0.0}),
        ("sgd", {"sharding": "on", "schedule": shuffled_schedule(build("conv"), 2, 1)}),
        ("sgd", {"sharding": "off", "schedule": halves}),
        ("adafactor", {"sharding": "auto", "schedule": halves}),
        ("adafactor", {"sharding": "auto"}),
    ):
        model = build("conv")
        try:
            optimizer = wrap("gloo", OPTIMIZERS[name](trainable(model)), model, **options)
        except (InvalidOptions, ScheduleMismatch) as error:
            said.append(str(error))
            continue
        said.append(optimizer.report().mode)
        optimizer.close()
    return said


def test_what_cannot_be_sharded_is_refused_or_runs_as_without() -> None:
    """The reason is named on every rank, or training runs as if nothing had been asked for."""
    for said in run_ranks(_refusals, 2):
        assert ".Adafactor is not known to update each element" in said[0]
        assert "updates cannot be sharded: compression is 'fp16'" in said[1]
        assert "sharding is 'sometimes'; 'off', 'auto' or 'on' is needed" in said[2]
        assert "max_grad_norm is 0.0; a positive number is needed" in said[3]
        assert "the schedule is one of all-reduces, but sharding is 'on'" in said[4]
        assert "the schedule is sharded" in said[5]
        assert "updates cannot be sharded in this job" in said[6]
        assert said[7] == "overlap"
