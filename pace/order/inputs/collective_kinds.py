"""The kinds of collectives behind the names that torch and NCCL write."""

from pace.documents.order.job_program import CollectiveKind

# In whose calls all ranks have equal sizes.
EQUAL_SIZES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce")
_KINDS: tuple[tuple[str, CollectiveKind], ...] = (
    ("allreducebarrier", "barrier"),
    ("allreduce", "all-reduce"),
    ("allgather", "all-gather"),
    ("reducescatter", "reduce-scatter"),
    ("broadcast", "broadcast"),
    ("alltoall", "all-to-all"),
    ("reduce", "reduce"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("barrier", "barrier"),
)


def kind_of(name: str) -> CollectiveKind:
    """Return the kind of a collective with this name."""
    plain = name.replace("_", "").lower()
    return next((kind for part, kind in _KINDS if part in plain), "other")
