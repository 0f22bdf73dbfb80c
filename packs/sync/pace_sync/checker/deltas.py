"""Whether a delta plan is a right answer for a delta-sync document, given plans of the transfers in it."""

import math

from pace.documents.base import refuse_other
from pace_sync.checker.weight_sync import check_bound
from pace_sync.documents.delta_sync import DeltaPlan, DeltaSync
from pace_sync.documents.weight_sync import SyncTensor
from pace_sync.errors import InvalidSync

TOLERANCE = 1e-9
# Any weights prove a bound; these are close to the best.
_RATIOS = [2 ** (eighths / 8) for eighths in range(-48, 49)]


def check_deltas(problem: DeltaSync, plan: DeltaPlan) -> list[str]:
    """Return every way in which a plan is not a right answer for a problem; empty if it is one.

    Derives what a link and a receiver need at least, and the mean pauses from the plan's own two pauses.
    """
    refuse_other(problem, DeltaSync, InvalidSync)
    refuse_other(plan, DeltaPlan, InvalidSync)
    if plan.problem_sha256 != problem.sha256:
        return ["problem_sha256 is that of another delta-sync document: plan again, or give that document"]
    found = []
    if plan.block_bytes != problem.block_bytes:
        found.append(f"block_bytes is {plan.block_bytes}, the document has {problem.block_bytes}")
    total = sum(tensor.size_bytes for tensor in problem.sync.tensors)
    hashed = total * problem.hash_s_per_byte
    for field, stated, least in (
        ("anchor_s", plan.anchor_s, hashed + total * problem.sync.seconds_per_byte),
        ("delta_s", plan.delta_s, hashed + total * problem.base_s_per_byte),
    ):
        if stated < least * (1 - TOLERANCE):
            found.append(f"{field} is {stated!r}, no way to do it takes less than {least!r}")
    late = 1 - math.prod(1 - problem.missed for _ in problem.sync.receivers)
    every = problem.most_versions
    derived = {
        "anchors": plan.anchor_s - hashed,
        "ask": plan.delta_s + late * plan.anchor_s,
        "wait": (plan.anchor_s + (every - 1) * plan.delta_s) / every,
    }
    sent = math.fsum(_changed_bytes(problem, tensor) for tensor in problem.sync.tensors)
    sizes = {"anchors": total, "ask": sent + late * total, "wait": sent + (total - sent) / every}
    if sorted(choice.rule for choice in plan.choices) != sorted(derived):
        return [*found, f"choices are not {', '.join(derived)}"]
    for choice in plan.choices:
        mean, size = derived[choice.rule], sizes[choice.rule]
        if abs(choice.mean_bytes - size) > TOLERANCE * max(total, 1):
            found.append(f'rule "{choice.rule}" has mean_bytes {choice.mean_bytes!r}, derived {size!r}')
        if abs(choice.mean_pause_s - mean) > TOLERANCE * max(mean, choice.mean_pause_s, hashed):
            found.append(f'rule "{choice.rule}" has mean_pause_s {choice.mean_pause_s!r}, derived {mean!r}')
    least = min(derived.values())
    if derived[plan.rule] > least * (1 + 1e-6):
        found.append(f'rule "{plan.rule}" has mean pause {derived[plan.rule]!r}, another one has {least!r}')
    if abs(plan.mean_pause_s - derived[plan.rule]) > TOLERANCE * (plan.mean_pause_s + hashed):
        found.append(f"mean_pause_s is {plan.mean_pause_s!r}, derived {derived[plan.rule]!r}")
    period = {"anchors": 1, "ask": None, "wait": every}[plan.rule]
    if plan.anchor_every != period:
        found.append(f"anchor_every is {plan.anchor_every}, derived {period}")
    if plan.bound_s > plan.mean_pause_s * (1 + TOLERANCE):
        found.append(f"bound_s {plan.bound_s!r} is above mean_pause_s {plan.mean_pause_s!r}")
    part = problem.sync.model_copy(
        update={
            "tensors": tuple(
                tensor.model_copy(update={"size_bytes": _changed_bytes(problem, tensor)})
                for tensor in problem.sync.tensors
            )
        }
    )
    found += check_bound(part, plan.bound_s, _RATIOS, TOLERANCE * plan.bound_s)
    above_s = hashed + plan.anchor_above_bytes * problem.sync.seconds_per_byte
    if plan.anchor_above_bytes > total or above_s > plan.anchor_s * (1 + TOLERANCE):
        found.append(
            f"anchor_above_bytes is {plan.anchor_above_bytes}: such a delta is not faster than an anchor"
        )
    return found


def _changed_bytes(problem: DeltaSync, tensor: SyncTensor) -> int:
    """Return the bytes of the blocks of a tensor that change."""
    block = max(problem.block_bytes - problem.block_bytes % tensor.cut_bytes, tensor.cut_bytes)
    blocks = math.ceil(tensor.size_bytes / block)
    return min(round(blocks * problem.changed) * block, tensor.size_bytes)
