"""Clusters for tests: of a few servers, and drawn; and a profile of three layers."""

from hypothesis import strategies as st

from pace import Profile
from pace.documents.cluster import Cluster, TransferRatio
from pace.documents.push_pull import PushPull
from tests.strategies import affine, eighths, layered


def cluster(
    servers: int = 1,
    *,
    bytes_per_s: float = 1.0,
    colocated: bool = False,
    partition_s: float = 0.0,
    round_trip_s: float = 0.0,
    server_bytes_per_s: float | None = None,
    min_partition_bytes: int = 0,
    ratios: dict[str, tuple[float, float]] | None = None,
) -> Cluster:
    """Return a cluster; `ratios` gives (push, pull) by gradient."""
    return Cluster(
        name="servers",
        exchange=PushPull(
            servers=servers,
            colocated=colocated,
            worker_bytes_per_s=bytes_per_s,
            server_bytes_per_s=server_bytes_per_s,
            partition_s=partition_s,
            round_trip_s=round_trip_s,
            min_partition_bytes=min_partition_bytes,
        ),
        ratios=tuple(
            TransferRatio(gradient=name, push=push, pull=pull)
            for name, (push, pull) in (ratios or {}).items()
        ),
    )


@st.composite
def clusters(draw: st.DrawFn, profile: Profile, *, uneven: bool = True) -> Cluster:
    """Draw a cluster that fits a profile."""
    colocated = profile.workers > 1 and draw(st.booleans())
    most = min(profile.workers, 4) if colocated else 4
    ratio = st.sampled_from([0.25, 0.5, 1.0, 2.0])
    names = [gradient.name for gradient in profile.gradients]
    chosen = draw(st.lists(st.sampled_from(names), unique=True)) if names and uneven else []
    return cluster(
        draw(st.integers(1, most)),
        bytes_per_s=draw(st.sampled_from([4.0, 16.0, 100.0])),
        colocated=colocated,
        partition_s=draw(eighths(1)),
        round_trip_s=draw(eighths(1)),
        server_bytes_per_s=None if colocated else draw(st.sampled_from([None, 8.0, 64.0])),
        min_partition_bytes=draw(st.sampled_from([0, 0, 3, 10, 64, 10**6])),
        ratios={name: (draw(ratio), draw(ratio)) for name in chosen},
    )


def three_layers(sizes: tuple[int, int, int], forward_s: float, workers: int = 1) -> Profile:
    """Return layers 0 to 2 of `sizes` bytes; the last is ready first, a second of backward pass each."""
    return layered(
        list(sizes[::-1]),
        allreduce=affine(0, 1),
        backward_s=[1, 1, 1],
        forward_s=[forward_s] * 3,
        dtypes=["int8"] * 3,
        workers=workers,
    )
