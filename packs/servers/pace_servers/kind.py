"""The kind of parameter servers: workers push gradients and pull parameters."""

from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pace.counted import counted
from pace.documents.options import Options, SimulationOptions
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions
from pace.kinds.kind import Details, PolicyRun, Row, WhatIfTable
from pace.kinds.over_profiles import OverProfiles, groups_and_segments, has_servers

if TYPE_CHECKING:
    from pace_servers.what_if import ServerGrid, ServerWhatIf


class Servers(OverProfiles):
    """Pushes to parameter servers and pulls from them."""

    name = "servers"
    ideal = "at best with these segments"
    bounded = "partition and order"
    shares_network = False
    answers_what_ifs = False
    unused = ("compute_slowdown", "load.delta", "load.sigma")
    examples: ClassVar[Mapping[str, str]] = {
        "optimize": "pace optimize profile.json --servers 2 -o schedule.json",
        "simulate": "pace simulate profile.json --servers 2 --policy byteps --policy pace",
        "what-if": "pace what-if profile.json --servers 1,2,4 --workers 8,16",
    }
    details: ClassVar[Details] = {
        "waits for stragglers": (
            "straggler_share",
            lambda run: run.straggler_share,
            lambda share: f"{share * 100:.2f} %",
        ),
        "lead": ("lead", lambda run: run.lead, str),
    }

    def fits(self, profile: Profile, options: Options) -> bool:
        """Return whether the profile was measured with servers, or the options have some."""
        return has_servers(profile, options)

    def _solve(self, profile: Profile, options: Options) -> Schedule:
        from pace_servers.planning.optimize import optimize_servers

        return optimize_servers(profile, options)

    def _violations(self, profile: Profile, schedule: Schedule) -> list[str]:
        from pace_servers.checker import check_servers

        return check_servers(profile, schedule)

    def simulate(
        self, profile: Profile, policy: str, knobs: Mapping[str, Any], options: SimulationOptions
    ) -> PolicyRun:
        """Simulate windows of all workers."""
        from pace.simulation import make_policy
        from pace_servers.planning.optimize import cluster_of
        from pace_servers.simulation.run import run_server_policy

        return run_server_policy(
            profile,
            cluster_of(profile, Options(cluster=options.cluster)),
            make_policy(policy, self.name, **knobs),
            iterations=options.iterations,
            jitter=options.jitter,
            seed=options.seed,
            consistency=options.consistency,
            staleness=options.staleness,
        )

    def lower_bound_s(self, profile: Profile, options: SimulationOptions) -> float | None:
        """Return the bound of the best schedule found; None where workers may use old parameters."""
        if options.is_stale:
            return None
        return self.solve(profile, Options(cluster=options.cluster)).predicted.lower_bound_s

    def simulated_title(self, profile: Profile, options: SimulationOptions) -> str:
        """Return the profile's name, and how many workers and servers there are."""
        from pace_servers.planning.optimize import cluster_of

        servers = cluster_of(profile, Options(cluster=options.cluster)).exchange.servers
        return f"{profile.name}, {counted(profile.workers, 'worker')}, {counted(servers, 'server')}"

    def unfit_policies(self, options: SimulationOptions) -> tuple[str, ...]:
        """Return TicTac's, whose steps end at a barrier, where workers do not wait for one another."""
        return ("tio", "tao") if options.is_stale else ()

    def first_knobs(self, profile: Profile, options: SimulationOptions) -> Mapping[str, float]:
        """Return delta0 = sqrt(M theta B / (2 S)) for partitions, and a credit of four of them."""
        from pace.solver.knob_search import CREDIT_IN_PARTITIONS
        from pace_servers.planning.optimize import cluster_of
        from pace_servers.planning.problem import ServersProblem

        cluster = cluster_of(profile, Options(cluster=options.cluster))
        size = ServersProblem.of(profile, cluster).suggested_partition_bytes()
        return {"partition_bytes": size, "credit_bytes": CREDIT_IN_PARTITIONS * size}

    def flags(self, command: str) -> tuple[Parameter, ...]:
        """Return what describes servers, and for simulations how far workers may be ahead."""
        from pace_servers.commands.options import CLUSTER, STALENESS

        return {"optimize": CLUSTER, "simulate": (*CLUSTER, STALENESS)}.get(command, ())

    def read_flags(self, profile: Profile, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the cluster, and the consistency and the staleness of a simulation."""
        from pace_servers.commands.options import read

        return read(profile, given)

    def grid(self) -> "type[ServerGrid]":
        """Return numbers and places of servers, and how far workers may be ahead."""
        from pace_servers.what_if import ServerGrid

        return ServerGrid

    def what_if(
        self,
        profile: Profile,
        grid: "ServerGrid",
        *,
        processes: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> "ServerWhatIf":
        """Simulate every point in this process, beside PACE's all-reduces on a ring of the same links."""
        from pace_servers.what_if import what_if_servers

        return what_if_servers(profile, grid, progress=progress)

    def what_if_s(self, profile: Profile, grid: "ServerGrid", processes: int | None) -> float:
        """Return 0: the number of cells is limited."""
        return 0.0

    def what_if_table(self, result: "ServerWhatIf") -> WhatIfTable:
        """Return iteration times and speed-ups."""
        policies = result.grid.policies
        points = [result.cells[at : at + len(policies)] for at in range(0, len(result.cells), len(policies))]
        where = "on the workers' hosts" if result.grid.colocated else "on hosts of their own"
        return WhatIfTable(
            title=f"{result.profile}, servers {where}: iteration ms (speed-up over {policies[0]})",
            headings=("workers", "Gbit/s", "servers", "staleness", *policies, "ring all-reduce"),
            rows=tuple(
                (
                    str(cells[0].workers),
                    "" if cells[0].bandwidth_gbps is None else f"{cells[0].bandwidth_gbps:g}",
                    str(cells[0].servers),
                    cells[0].staleness,
                    *(f"{cell.iteration_s * 1e3:.3f} ({cell.speedup:.2f})" for cell in cells),
                    f"{cells[0].allreduce_s * 1e3:.3f}",
                )
                for cells in points
            ),
        )

    def draw_what_if(self, result: "ServerWhatIf", path: Path) -> None:
        """Raise InvalidOptions."""
        raise InvalidOptions(f'what-ifs of exchange "{self.name}" cannot be drawn: leave the chart out')

    def title(self, profile: Profile, schedule: Schedule) -> str:
        """Return the profile's name and size, and how many servers there are."""
        exchange = schedule.placement.exchange
        servers = counted(exchange.servers, "server")
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


KINDS = (Servers(),)
