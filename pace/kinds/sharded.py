"""The kind of sharded updates: reduce-scatters, updates of shards, all-gathers."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from pace.counted import counted
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.kinds.kind import Row
from pace.kinds.over_profiles import OverProfiles, has_servers, milliseconds


class Shards(OverProfiles):
    """Sharded updates."""

    name = "sharded"
    unused = ("load.sigma",)
    bounded = "sharded schedule"
    examples: ClassVar[Mapping[str, str]] = {
        "optimize": "pace optimize profile.json --exchange sharded -o schedule.json",
        "simulate": "pace simulate profile.json --exchange sharded --policy zero-1 --policy sharded",
    }

    def fits(self, profile: Profile, options: Options) -> bool:
        """Return whether updates wait for a global norm: then shards are faster."""
        if has_servers(profile, options):
            return False
        return options.framework is None and profile.update == "global-norm"

    def _solve(self, profile: Profile, options: Options) -> Schedule:
        from pace.planning.sharded.optimize import optimize_sharded

        return optimize_sharded(profile, options)

    def _violations(self, profile: Profile, schedule: Schedule) -> list[str]:
        from pace.checker.sharded import check_sharded

        return check_sharded(profile, schedule)

    def _plan_rows(self, profile: Profile, schedule: Schedule) -> Iterator[Row]:
        sharding = schedule.sharding
        assert sharding is not None
        scatters = len(schedule.groups_of("reduce-scatter"))
        yield (
            "plan",
            f"{counted(scatters, 'reduce-scatter')} and "
            f"{counted(len(schedule.groups) - scatters, 'all-gather')} of "
            f"{counted(len(sharding.shards), 'shard')}, in "
            f"{counted(schedule.num_segments, 'segment')}; updates {sharding.update}",
        )
        if sharding.norm is not None:
            yield "norm", f"exchanged at {milliseconds(sharding.norm.start_s)}"
