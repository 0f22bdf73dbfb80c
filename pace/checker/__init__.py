"""An independent judge of schedules and transfer plans: shares no code with the solver.

Every number is derived again. Ready times and tails come from networkx's topological order, durations from
the formulas written out again, the oracle's optimum from its dual (the strongest of all sets, DESIGN 4.3)
instead of from a schedule. Times agree when they differ by less than one part in 10^9 of the window.
"""

from pace.checker.allreduce import allreduce_s
from pace.checker.derived_times import derive
from pace.checker.plan import check_groups, check_identity, check_segments
from pace.checker.proofs import check_bound, check_certificate, check_chain_bound, check_predictions
from pace.checker.slots import check_slots
from pace.checker.transfers import check_transfers
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule

__all__ = ["allreduce_s", "check", "check_transfers"]


def check(profile: Profile, schedule: Schedule) -> list[str]:
    """Return every way in which `schedule` is not a right answer for `profile`; empty if it is one.

    A schedule may be slower than the best: optimality is claimed by its certificate and bounds, and those
    are re-added here.
    """
    times = derive(profile, schedule)
    parts = (
        check_identity(profile, schedule),
        check_groups(profile, schedule, times),
        check_segments(profile, schedule, times),
        check_slots(schedule, times),
        check_predictions(schedule, times),
        check_certificate(schedule, times),
        check_bound(profile, schedule, times),
        check_chain_bound(profile, schedule, times),
    )
    return [violation for part in parts for violation in part]
