"""The schedule that fits what is asked for: of all-reduces, or in two halves."""

from pace.allreduce import optimize as allreduce
from pace.allreduce.optimize import optimize
from pace.documents.collective_costs import AffineAllReduce
from pace.documents.half_costs import SampledHalf
from pace.documents.options import Options
from pace.documents.profile import Gradient, Op, Profile
from pace.documents.push_pull import PushPull
from pace.documents.schedule import Schedule
from pace.documents.sharded_schedule import ShardedSchedule
from pace.sharding.optimize import optimize_sharded


def best_schedule(profile: Profile, options: Options | None = None) -> Schedule | ShardedSchedule:
    """Return the schedule of a profile for ``options.target``.

    In two halves for target "sharded", and for "pace" where the profile's updates wait for a global norm;
    otherwise a schedule of all-reduces.

    Raises
    ------
    InvalidOptions, SolverFailed
        As ``pace.allreduce.optimize.optimize`` and ``pace.sharding.optimize.optimize_sharded`` do.
    """
    options = options or Options()
    if is_sharded(profile, options):
        return optimize_sharded(profile, options)
    return optimize(profile, options)


def lower_bound_s(profile: Profile) -> float:
    """Return what no schedule of whole all-reduces beats; behind a norm, none in two halves either."""
    bound = optimize(profile).predicted.lower_bound_s
    if profile.update == "per-gradient" or isinstance(profile.allreduce, PushPull):
        return bound
    return min(bound, optimize_sharded(profile).predicted.lower_bound_s)


def is_sharded(profile: Profile, options: Options) -> bool:
    """Whether ``best_schedule`` answers in two halves."""
    return options.target == "sharded" or (options.target == "pace" and profile.update == "global-norm")


def warm_up() -> None:
    """Compile every hot loop that ``best_schedule`` may call, so that no request waits for a compiler."""
    allreduce.warm_up()
    names = [f"gradient {layer}" for layer in range(4)]
    ops = [Op(name=f"bwd/{name}", duration_s=1.0, stream="compute") for name in names]
    ops += [
        Op(name=f"fwd/{name}", duration_s=1.0, stream="compute", waits_for=(name,)) for name in names[::-1]
    ]
    profile = Profile(
        name="warm-up",
        workers=2,
        ops=tuple(ops),
        gradients=tuple(Gradient(name=name, size_bytes=8, producer=f"bwd/{name}") for name in names),
        allreduce=AffineAllReduce(latency_s=0.1, seconds_per_byte=0.1),
    )
    half = SampledHalf(samples=((4, 0.1), (8, 0.4), (16, 0.5)))
    for costs in (profile, profile.replace(reduce_scatter=half, all_gather=half)):
        optimize_sharded(costs)
        optimize_sharded(costs.replace(update="global-norm"))
