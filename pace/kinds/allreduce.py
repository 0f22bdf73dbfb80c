"""The kind of whole all-reduces: every worker gets the sum of each gradient and updates all parameters."""

from collections.abc import Iterator

from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.kinds.kind import Row
from pace.kinds.over_profiles import OverProfiles, groups_and_segments, has_servers


class AllReduces(OverProfiles):
    """Whole all-reduces."""

    name = "allreduce"

    def fits(self, profile: Profile, options: Options) -> bool:
        """Return whether there are no servers."""
        return not has_servers(profile, options)

    def _solve(self, profile: Profile, options: Options) -> Schedule:
        from pace.planning.allreduce.optimize import optimize_allreduce

        return optimize_allreduce(profile, options)

    def _violations(self, profile: Profile, schedule: Schedule) -> list[str]:
        from pace.checker.plan import check_allreduce

        return check_allreduce(profile, schedule)

    def _plan_rows(self, profile: Profile, schedule: Schedule) -> Iterator[Row]:
        yield "plan", groups_and_segments(schedule)
