"""What a caller may ask of the optimizer; shared by the Python API, the command line and the service."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document
from pace.documents.schedule import AskedTarget, Fusion, Oracle

Risk = Literal["mean", "p95"]


class Options(Document):
    """Options of ``optimize``.

    Attributes
    ----------
    oracle
        "jackson" (longest tail first, exact in continuous and in slotted time) or "lp" (the totally
        unimodular linear program; needs `slot_s`).
    fusion
        "optimal", "pace" (the paper's Algorithm 1) or "none".
    target
        Whose semantics to optimize for. "allreduce": our runtime with whole all-reduces; "sharded": with
        reduce-scatters, updates of shards and all-gathers; "pace": "sharded" where the profile's updates wait
        for a global norm, else "allreduce". "ddp" and "horovod": buckets and groups behind a barrier.
    slot_s
        Length of a slot in seconds; None for continuous time.
    max_group_bytes
        No group of more than one gradient is larger.
    max_segment_bytes
        No segment is larger.
    scenarios, jitter, risk
        With `scenarios` > 0, plans are compared by their iteration time over so many sampled windows in
        which every op's duration is lognormal, with the profile's standard deviation or, where it has none,
        `jitter` times its duration. `risk` says whether the mean or the 95th percentile counts.
    search_calls
        Budget of the local search on profiles with parallel branches, in oracle calls, so that the result
        does not depend on the machine's speed.
    """

    oracle: Oracle = "jackson"
    fusion: Fusion = "optimal"
    target: AskedTarget = "pace"
    slot_s: Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = None
    max_group_bytes: Annotated[int, Field(gt=0)] | None = None
    max_segment_bytes: Annotated[int, Field(gt=0)] | None = None
    scenarios: Annotated[int, Field(ge=0, le=10_000)] = 0
    jitter: Annotated[float, Field(ge=0, le=10)] = 0.0
    risk: Risk = "mean"
    search_calls: Annotated[int, Field(ge=1, le=10_000_000)] = 2000
