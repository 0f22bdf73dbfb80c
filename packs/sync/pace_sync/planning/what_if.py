"""The pause of weight synchronization with other links, receivers and credits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pace.errors import InvalidOptions
from pace_sync.documents.weight_sync import SyncReceiver, WeightSync
from pace_sync.planning.plan import plan_sync

BITS = 8
MOST_RECEIVERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPoint:
    """One point of the grid.

    Attributes
    ----------
    tensor_by_tensor_s, fixed_buckets_s
        The pauses of other rules, of the best size for fixed buckets; None where they do not fit the credit.
    """

    bandwidth_gbps: float | None
    receivers: int
    credit_bytes: int | None
    pause_s: float
    bound_s: float
    num_buckets: int
    tensor_by_tensor_s: float | None
    fixed_buckets_s: float | None


def sync_grid(
    problem: WeightSync,
    *,
    bandwidth_gbps: Sequence[float] = (),
    receivers: Sequence[int] = (),
    credit_bytes: Sequence[int] = (),
) -> list[SyncPoint]:
    """Return the pause at every point of the grid; an empty axis stays as the document has it.

    More receivers than there are repeat the last one.

    Raises
    ------
    InvalidOptions
        For rates and numbers that are not positive, and for more than 10,000 receivers.
    InvalidSync
        For credits that are smaller than a block.
    """
    for name, values in (
        ("bandwidth", bandwidth_gbps),
        ("receivers", receivers),
        ("credit_bytes", credit_bytes),
    ):
        wrong = [value for value in values if not 0 < value < math.inf]
        if wrong:
            raise InvalidOptions(f"{name} {wrong[0]:g}: give positive numbers")
    if max(receivers, default=0) > MOST_RECEIVERS:
        raise InvalidOptions(f"receivers {max(receivers)}: give at most {MOST_RECEIVERS:,}")
    rates: Sequence[float | None] = bandwidth_gbps or [None]
    limits: Sequence[int | None] = credit_bytes or [problem.credit_bytes]
    points = []
    for rate in rates:
        for count in receivers or [len(problem.receivers)]:
            for credit in limits:
                plan = plan_sync(_changed(problem, rate, count, credit))
                fixed = [each.pause_s for each in plan.rivals[1:] if each.pause_s is not None]
                points.append(
                    SyncPoint(
                        bandwidth_gbps=rate,
                        receivers=count,
                        credit_bytes=credit,
                        pause_s=plan.predicted.pause_s,
                        bound_s=plan.bound.bound_s,
                        num_buckets=len(plan.buckets),
                        tensor_by_tensor_s=plan.rivals[0].pause_s,
                        fixed_buckets_s=min(fixed, default=None),
                    )
                )
    return points


def _changed(problem: WeightSync, rate_gbps: float | None, count: int, credit: int | None) -> WeightSync:
    taken = {receiver.name for receiver in problem.receivers}
    hosts = list(problem.receivers[:count])
    number = len(hosts)
    while len(hosts) < count:
        number += 1
        name = f"receiver {number}"
        if name not in taken:
            hosts.append(hosts[-1].model_copy(update={"name": name}))
    change = {} if rate_gbps is None else {"bytes_per_s": rate_gbps * 1e9 / BITS}
    return WeightSync(
        name=problem.name,
        tensors=problem.tensors,
        sender=problem.sender.model_copy(update=change),
        receivers=tuple(SyncReceiver(**{**_fields(host), **change}) for host in hosts),
        fan_out=problem.fan_out,
        message_s=problem.message_s,
        credit_bytes=credit,
    )


def _fields(host: SyncReceiver) -> dict[str, object]:
    return {name: getattr(host, name) for name in type(host).model_fields}
