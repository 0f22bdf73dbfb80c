"""Rules that libraries use today: one message a tensor, and buckets of a fixed size in list order."""

from pace_sync.documents.weight_sync import WeightSync
from pace_sync.planning.lowering import Part

# Bytes of a bucket: DDP's, and those between which users of verl and slime choose.
FIXED_BYTES = tuple(mib << 20 for mib in (25, 64, 128, 256, 512, 1024, 2048))


def tensor_by_tensor(problem: WeightSync) -> list[list[Part]] | None:
    """Return one bucket for each tensor, in the order of the list; None if one does not fit the credit."""
    sizes = [tensor.size_bytes for tensor in problem.tensors]
    if problem.credit_bytes is not None and max(sizes) > problem.credit_bytes:
        return None
    return [[(number, 0, size)] for number, size in enumerate(sizes) if size]


def fixed_buckets(problem: WeightSync, largest_bytes: int) -> list[list[Part]] | None:
    """Return buckets of whole tensors, filled in the order of the list; None if they do not fit the credit.

    A bucket is sent when the next tensor would not fit. A larger tensor has a bucket of its own.
    """
    buckets: list[list[Part]] = []
    filled = largest_bytes
    for number, tensor in enumerate(problem.tensors):
        size = tensor.size_bytes
        if not size:
            continue
        if filled + size > largest_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append((number, 0, size))
        filled += size
        if problem.credit_bytes is not None and filled > problem.credit_bytes:
            return None
    return buckets
