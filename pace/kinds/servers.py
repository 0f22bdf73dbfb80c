"""The kind of parameter servers: workers push gradients and pull parameters."""

from collections.abc import Iterator

from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.documents.schedule import Schedule
from pace.kinds.kind import Row
from pace.kinds.over_profiles import OverProfiles, groups_and_segments


class Servers(OverProfiles):
    """Pushes to parameter servers and pulls from them."""

    name = "servers"
    ideal = "at best with these segments"
    bounded = "partition and order"

    def fits(self, profile: Profile, options: Options) -> bool:
        """Return whether the profile was measured with servers, or the options have some."""
        if options.framework is not None:
            return False
        return options.cluster is not None or isinstance(profile.allreduce, PushPull)

    def _solve(self, profile: Profile, options: Options) -> Schedule:
        from pace.planning.servers.optimize import optimize_servers

        return optimize_servers(profile, options)

    def _violations(self, profile: Profile, schedule: Schedule) -> list[str]:
        from pace.checker.servers import check_servers

        return check_servers(profile, schedule)

    def title(self, profile: Profile, schedule: Schedule) -> str:
        """Return the same, and how many servers there are."""
        exchange = schedule.placement.exchange
        servers = f"{exchange.servers} server{'' if exchange.servers == 1 else 's'}"
        where = " on their hosts" if exchange.colocated else ""
        return f"{super().title(profile, schedule)}, {servers}{where}"

    def _plan_rows(self, profile: Profile, schedule: Schedule) -> Iterator[Row]:
        yield (
            "plan",
            f"{groups_and_segments(schedule)} of at most {schedule.execution.max_segment_bytes:,} bytes, "
            f"{schedule.solver.order} order (size by formula: "
            f"{schedule.solver.suggested_partition_bytes:,.0f} bytes)",
        )
        yield "segments", _segments(schedule)
        if tables := _tables(profile, schedule):
            yield "tables", tables


def _segments(schedule: Schedule) -> str:
    """Say how many segments travel, and how small they are."""
    sizes = sorted(segment.size_bytes for segment in schedule.of_op("push"))
    if not sizes:
        return "none: there is nothing to send"
    least = schedule.placement.exchange.min_partition_bytes
    half = sizes[len(sizes) // 2]
    told = f"{len(sizes):,}, the smallest of {sizes[0]:,} bytes, half of them of {half:,} bytes or more"
    return f"{told}; no group is cut below {least:,} bytes" if least else told


def _tables(profile: Profile, schedule: Schedule) -> str:
    """Say what is sent of embedding tables, and what is not known of them; nothing without tables."""
    ratios = {ratio.gradient: ratio for ratio in schedule.placement.ratios}
    told, known = [], profile.workers
    for gradient in profile.gradients:
        ratio = ratios.get(gradient.name)
        if gradient.touched is not None and ratio is not None:
            told.append(f"{gradient.name}: {ratio.push:.2%} pushed, {ratio.pull:.2%} pulled")
            known = min(known, len(gradient.touched.distinct))
    if known < profile.workers:
        told.append(
            f"pulls are upper estimates, as the profile has the rows of {known} steps together, and "
            f"{profile.workers} workers need those of {profile.workers}"
        )
    if left_out := profile.metadata.get("tables_left_out"):
        told.append(f"not in this plan: {', '.join(left_out)}")
    return "; ".join(told)
