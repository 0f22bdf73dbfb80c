"""The planner of deltas: whether to send only what changed, and when whole weights pay."""

from pace.documents.base import refuse_other
from pace.version import __version__
from pace_sync.documents.delta_sync import DeltaChoice, DeltaPlan, DeltaSync
from pace_sync.documents.weight_sync import SyncTensor, WeightSync
from pace_sync.errors import InvalidSync
from pace_sync.planning.plan import plan_sync

# The share above which whole weights are faster is found to 1 in 2^7.
_HALVINGS = 7


def plan_deltas(problem: DeltaSync) -> DeltaPlan:
    """Return the rule with the shortest mean pause, and when an anchor pays.

    The pause of a delta is the sender's hash of all blocks, and then the longer one of two things that go on
    at the same time: the transfer of the blocks that changed, in buckets of their own plan, and the
    receiver's copy of the version before. With q the probability that some receiver missed a version, A the
    pause of an anchor with its hashes, and D that of a delta, the mean pause over versions is

    - for anchors only: A without hashes;
    - if late receivers ask: D + q A, because the anchor follows the delta;
    - if they wait for an anchor every p versions: (A + (p - 1) D) / p, with p the most versions that one may
      be late.

    So periodic anchors pay where A - D < p q A. Exact in this model, for versions that miss independently.
    Expected bytes follow the same formulas, with the bytes of an anchor and of a delta.

    Raises
    ------
    InvalidSync
        For what is no delta-sync document.
    """
    refuse_other(problem, DeltaSync, InvalidSync)
    total = sum(tensor.size_bytes for tensor in problem.sync.tensors)
    hashed_s = total * problem.hash_s_per_byte
    whole = plan_sync(problem.sync)
    anchor_s = hashed_s + whole.predicted.pause_s
    part = part_of(problem, problem.changed)
    planned = plan_sync(part)
    delta_s = _delta_s(problem, planned.predicted.pause_s)
    somebody = 1 - (1 - problem.missed) ** len(problem.sync.receivers)
    every = problem.most_versions
    sent = sum(tensor.size_bytes for tensor in part.tensors)
    choices = (
        DeltaChoice(rule="anchors", mean_pause_s=whole.predicted.pause_s, mean_bytes=total),
        DeltaChoice(
            rule="ask", mean_pause_s=delta_s + somebody * anchor_s, mean_bytes=sent + somebody * total
        ),
        DeltaChoice(
            rule="wait",
            mean_pause_s=(anchor_s + (every - 1) * delta_s) / every,
            mean_bytes=(total + (every - 1) * sent) / every,
        ),
    )
    best = min(choices, key=lambda choice: choice.mean_pause_s)
    return DeltaPlan(
        problem_sha256=problem.sha256,
        version=__version__,
        block_bytes=problem.block_bytes,
        rule=best.rule,
        anchor_every={"anchors": 1, "ask": None, "wait": every}[best.rule],
        anchor_above_bytes=_turning_point(problem, whole.predicted.pause_s),
        anchor_s=anchor_s,
        delta_s=delta_s,
        mean_pause_s=best.mean_pause_s,
        bound_s=planned.bound.bound_s,
        choices=choices,
    )


def part_of(problem: DeltaSync, share: float) -> WeightSync:
    """Return the synchronization of this share of each tensor's blocks."""
    tensors = []
    for tensor in problem.sync.tensors:
        block = max(problem.block_bytes // tensor.cut_bytes, 1) * tensor.cut_bytes
        blocks = -(-tensor.size_bytes // block)
        size = min(round(blocks * share) * block, tensor.size_bytes)
        fields = {name: getattr(tensor, name) for name in SyncTensor.model_fields}
        tensors.append(SyncTensor(**fields | {"size_bytes": size}))
    fields = {name: getattr(problem.sync, name) for name in WeightSync.model_fields}
    return WeightSync(**fields | {"tensors": tuple(tensors)})


def _delta_s(problem: DeltaSync, sent_s: float) -> float:
    """Return the pause of a delta whose blocks take this time to arrive."""
    total = sum(tensor.size_bytes for tensor in problem.sync.tensors)
    return total * problem.hash_s_per_byte + max(sent_s, total * problem.base_s_per_byte)


def _turning_point(problem: DeltaSync, whole_s: float) -> int:
    """Return the most bytes of a delta that is faster than an anchor, sent in `whole_s`."""
    total = sum(tensor.size_bytes for tensor in problem.sync.tensors)
    anchor_s = total * problem.hash_s_per_byte + whole_s
    if _delta_s(problem, 0.0) >= anchor_s:
        return 0
    # A delta of all bytes is never faster.
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _delta_s(problem, plan_sync(part_of(problem, middle)).predicted.pause_s) < anchor_s:
            low = middle
        else:
            high = middle
    return int(low * total)
