"""A profile of two layers that can be worked out by hand, alone and as a trace would leave it."""

from pace.documents.collective_costs import AffineAllReduce
from pace.documents.profile import Gradient, Op, Profile

MB = 1_000_000

# Backward 1 s and 1 s, forward 1 s and 1 s; the gradient ready first is needed last. A MB takes 1 s.
PROFILE = Profile(
    name="two layers",
    workers=2,
    ops=(
        Op(name="bwd/1", duration_s=1.0, stream="compute"),
        Op(name="bwd/0", duration_s=1.0, stream="compute"),
        Op(name="fwd/0", duration_s=1.0, stream="compute", waits_for=("g0",)),
        Op(name="fwd/1", duration_s=1.0, stream="compute", waits_for=("g1",)),
    ),
    gradients=(
        Gradient(name="g1", size_bytes=MB, dtype="uint8", producer="bwd/1"),
        Gradient(name="g0", size_bytes=MB, dtype="uint8", producer="bwd/0"),
    ),
    allreduce=AffineAllReduce(latency_s=0.0, seconds_per_byte=1 / MB),
)


def anchored_profile(
    *, error: float = 0.0, late_s: float = 0.0, window_s: float = 6.0, kind: str = "DDP"
) -> Profile:
    """Return the two layers as a trace would leave them: both gradients in one bucket, sent from 2 to 4."""
    replay = {
        "predicted_s": window_s,
        "recorded_s": [window_s / (1 + error)],
        "error": error,
        "late_s": late_s,
        "calls": [{"ready": 2, "size_bytes": 2 * MB, "lane": "1", "start_s": 2.0, "end_s": 4.0}],
    }
    job = {"kind": kind, "sure": "certain", "why": "made by hand"}
    return PROFILE.replace(metadata={"replay": replay, "job": job})
