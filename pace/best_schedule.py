"""The schedule that fits what is asked for: of all-reduces, or in two halves."""

from pace.allreduce.optimize import optimize
from pace.documents.options import Options
from pace.documents.profile import Profile
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


def is_sharded(profile: Profile, options: Options) -> bool:
    """Whether ``best_schedule`` answers in two halves."""
    return options.target == "sharded" or (options.target == "pace" and profile.update == "global-norm")
