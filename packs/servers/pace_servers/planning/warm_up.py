"""Compiles the hot loops of the planner."""

from collections.abc import Callable
from functools import partial

from pace.documents.profile import Gradient, Op, Profile
from pace.documents.push_pull import PushPull
from pace_servers.planning.optimize import optimize_servers


def kernels() -> list[Callable[[], object]]:
    """Return functions that plan something small."""
    ops = [Op(name=f"bwd/{layer}", duration_s=1.0, stream="compute") for layer in range(2)]
    ops += [
        Op(name=f"fwd/{layer}", duration_s=1.0, stream="compute", waits_for=(f"gradient {layer}",))
        for layer in (1, 0)
    ]
    profile = Profile(
        name="warm-up",
        workers=2,
        ops=tuple(ops),
        gradients=tuple(
            Gradient(name=f"gradient {layer}", size_bytes=8_000_000, producer=f"bwd/{layer}")
            for layer in range(2)
        ),
        allreduce=PushPull(servers=1, worker_bytes_per_s=1e6),
    )
    return [partial(optimize_servers, profile)]
