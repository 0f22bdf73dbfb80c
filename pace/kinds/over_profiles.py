"""What kinds whose problem is a profile have in common: a window, its bound and its transfers."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pace.counted import counted
from pace.documents.options import Options, SimulationOptions
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.documents.schedule import Schedule
from pace.kinds.kind import Details, Kind, PolicyRun, Row, WhatIfTable

if TYPE_CHECKING:
    from pace.whatif.grid import PolicyGrid

# So many points of the curve of calls and expected windows are shown.
SHOWN_CALLS = 6


class OverProfiles(Kind):
    """A kind of problem over a profile of one iteration."""

    # What the time is without the cost of preemption, and which schedules the bound is about.
    ideal = "if preemption were free"
    bounded = "schedule"
    shares_network = True
    details: ClassVar[Details] = {
        "spread ms": (
            "iteration_std_s",
            lambda run: float(run.iterations_s.std()),
            lambda seconds: f"{seconds * 1e3:.3f}",
        )
    }

    def simulate(
        self, profile: Profile, policy: str, knobs: Mapping[str, Any], options: SimulationOptions
    ) -> PolicyRun:
        """Simulate the profile's windows on its one network."""
        from pace.simulation import make_policy, run_policy

        return run_policy(
            profile,
            make_policy(policy, **knobs),
            iterations=options.iterations,
            jitter=options.jitter,
            seed=options.seed,
        )

    def speed(self, profile: Profile) -> tuple[float, str] | None:
        """Return the batch of all workers, and what it counts."""
        from pace.whatif.scenario import batch_unit, measured_batch

        batch = measured_batch(profile)
        return None if batch is None else (batch * profile.workers, batch_unit(profile))

    def grid(self) -> "type[PolicyGrid]":
        """Return axes of networks and scales, for policies on the profile's network."""
        from pace.whatif import Grid

        return Grid

    def what_if(
        self,
        profile: Profile,
        grid: Any,
        *,
        processes: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Any:
        """Simulate every point under every policy, in several processes where that is faster."""
        from pace.whatif import what_if

        return what_if(profile, grid, processes=processes, progress=progress)

    def what_if_s(self, profile: Profile, grid: Any, processes: int | None) -> float:
        """Return an estimate from some of the points."""
        from pace.whatif import estimate_s

        return estimate_s(profile, grid, processes=processes)

    def what_if_table(self, result: Any) -> WhatIfTable:
        """Return throughput, efficiency and speed-up by the axes that vary, and what reaches a target."""
        from pace.view.what_if_charts import LABELS

        axes = result.grid.varied()
        rows = []
        for cells in result.points():
            fastest = min(cell.iteration_s for cell in cells)
            shown = (
                (cell, f"{cell.throughput:.5g}  {cell.scaling_efficiency * 100:3.0f} %  {cell.speedup:.2f}")
                for cell in cells
            )
            values = (getattr(cells[0], axis) for axis in axes)
            rows.append(
                (
                    *(f"{value:g}" if isinstance(value, float) else str(value) for value in values),
                    *(
                        f"[bold]{text}[/bold]" if cell.iteration_s == fastest else text
                        for cell, text in shown
                    ),
                )
            )
        notes = []
        for answer in result.answers:
            place = ", ".join(
                f"{LABELS[axis]} {getattr(answer, axis)}" for axis in axes if axis != "bandwidth_gbps"
            )
            gbps = answer.bandwidth_gbps
            reached = "no bandwidth" if gbps is None else f"{gbps:.3g} Gbit/s"
            wanted = f"{answer.policy} reaches {answer.target_efficiency * 100:g} % at {reached}"
            notes.append(f"{place}: {wanted}" if place else wanted)
        return WhatIfTable(
            title=f"{result.profile.name}: {result.unit}/s of all workers, scaling efficiency, speed-up over "
            f"{result.grid.baseline_policy}",
            headings=(*(LABELS[axis] for axis in axes), *result.grid.policies),
            rows=tuple(rows),
            notes=tuple(notes),
        )

    def draw_what_if(self, result: Any, path: Path) -> None:
        """Draw throughput, scaling efficiency and speed-up."""
        from pace.view.what_if_charts import plot

        plot(result, path)

    def title(self, profile: Profile, schedule: Schedule) -> str:
        """Return the profile's name, and how many gradients and workers it has."""
        gradients = counted(len(profile.gradients), "gradient")
        return f"{profile.name}: {gradients}, {counted(profile.workers, 'worker')}"

    def rows(self, profile: Profile, schedule: Schedule) -> Iterator[Row]:
        """Yield times, the bound and the plan."""
        predicted, solver = schedule.predicted, schedule.solver
        ideal = self.ideal if solver.slot_s is None else "in whole slots"
        yield (
            "iteration",
            f"{milliseconds(predicted.iteration_s)} predicted; {milliseconds(predicted.ideal_iteration_s)} "
            f"{ideal}; compute alone {milliseconds(predicted.compute_s)}",
        )
        bounded = self.bounded if schedule.framework is None else "schedule that stops at a barrier"
        yield (
            "optimality",
            f"within {_percent(predicted.gap)} of what any {bounded} can do "
            f"({milliseconds(predicted.lower_bound_s)})",
        )
        if predicted.expected_s is not None:
            stated = profile.load is not None and profile.load.delta is not None
            yield (
                "under load",
                f"{milliseconds(predicted.expected_s)} expected with late ranks and calls that take longer "
                f"while compute runs ({'as the profile says' if stated else 'assumed'})"
                + (f"; DDP {milliseconds(predicted.ddp_s)}" if predicted.ddp_s else ""),
            )
            tried = ", ".join(f"{s * 1e3:.3f} ms with {calls}" for calls, s in solver.curve[-SHOWN_CALLS:])
            yield "calls", f"expected under load: {tried}"
        elif solver.slot_s is not None:
            yield "under load", "not considered: with slots, late ranks and slower calls do not count"
        yield from self._plan_rows(profile, schedule)
        if solver.num_programs is not None and solver.programs_s is not None:
            programs = f"{solver.num_programs:,} linear programs by {solver.lp_solver}"
            yield "oracle", f"{programs}, {solver.programs_s:.3f} s"
        yield "fusion", f"{solver.fusion}: {solver.method}"

    @abstractmethod
    def _plan_rows(self, profile: Profile, schedule: Schedule) -> Iterator[Row]:
        """Yield what the plan consists of."""

    def draw(self, profile: Profile, schedule: Schedule, path: Path) -> None:
        """Draw compute and the network of the predicted window."""
        from pace.view.chart import plot

        plot(profile, schedule, path)


def has_servers(profile: Profile, options: Options) -> bool:
    """Return whether the options have parameter servers, or else the profile was measured with some."""
    if options.framework is not None:
        return False
    return options.cluster is not None or isinstance(profile.allreduce, PushPull)


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds, with their unit."""
    return f"{seconds * 1e3:.3f} ms"


def groups_and_segments(schedule: Schedule) -> str:
    """Return how many groups and segments a schedule has."""
    return f"{counted(len(schedule.groups), 'group')} in {counted(schedule.num_segments, 'segment')}"


def _percent(gap: float) -> str:
    return f"{max(gap, 0.0) * 100:.2g} %" if gap >= 1e-5 else "0 %"
