"""The judge of schedules of all-reduces."""

from pace.checker.derived_times import derive
from pace.checker.plan import check_groups, check_identity, check_segments
from pace.checker.proofs import check_bound, check_chain_bound, check_predictions, check_proof
from pace.checker.slots import check_slots
from pace.checker.under_load import check_under_load
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule


def check_allreduce(profile: Profile, schedule: Schedule) -> list[str]:
    """Return every way in which a schedule of all-reduces is wrong for its profile."""
    times = derive(profile, schedule)
    parts = (
        check_identity(profile, schedule),
        check_groups(profile, schedule, times),
        check_segments(profile, schedule, times),
        check_slots(schedule, times),
        check_predictions(schedule, times),
        check_proof(schedule, times),
        check_bound(profile, schedule, times),
        check_chain_bound(profile, schedule, times),
    )
    violations = [violation for part in parts for violation in part]
    # Calls of gradients that are not the profile's have no times.
    return violations or list(check_under_load(profile, schedule, times))
