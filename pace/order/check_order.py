"""The one entry point: a job program in, a proof or a counterexample out."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pace.documents.base import refuse_other
from pace.documents.graph.collective_graph import load_graph
from pace.documents.order.job_program import (
    EnqueuedCollective,
    EnqueuedTransfer,
    EnqueuedWait,
    HostThread,
    JobProgram,
    RankProgram,
    load_job_program,
)
from pace.documents.order.order_report import OrderFinding, OrderReport, StreamRule
from pace.documents.schedule import load_schedule
from pace.errors import FormatError, InvalidJobProgram, InvalidOptions
from pace.formats.reading import open_binary
from pace.order.findings import findings_of
from pace.order.inputs.flight_recorder import is_dump, read_flight_recorder
from pace.order.inputs.fx_graphs import is_fx_graph, read_fx_graphs
from pace.order.inputs.job_groups import GivenGroups, in_order_of_ranks
from pace.order.inputs.kineto_traces import read_kineto_order
from pace.order.inputs.plans import program_of_plans
from pace.order.lowering import lower
from pace.solver.collective_order.decision import decide

OUTSIDE = (
    "resources of NCCL: channels, memory or thread blocks that run out when many communicators run at once",
    "failures: a process that dies, a link that breaks, an operation that takes longer than its time-out",
    "host code that the program does not show: locks, data loaders, other libraries, the GIL",
)

NOT_RECORDED = "what the records leave out: waits, synchronizations, sends, receives, and all after their end"


def check_order(
    program: JobProgram | str | Path | Sequence[str | Path],
    *,
    streams: StreamRule = "side-by-side",
    launch_slots: int | None = None,
    groups: GivenGroups | None = None,
) -> OrderReport:
    """Prove that a job's collectives cannot hang, or show which ranks wait for one another.

    Exact within its model (``pace.solver.collective_order.decision`` has the theorem), in time linear in the
    operations of all different ranks.

    Parameters
    ----------
    program
        What every rank enqueues, or files that say it (``read_job_program``).
    streams
        "side-by-side": a device runs the first operation of every stream at once. "launch-order": it starts
        operations in the order in which the rank enqueues them, whatever their stream, as with
        ``CUDA_DEVICE_MAX_CONNECTIONS=1``.
    launch_slots
        Operations that a stream holds before the thread that enqueues another one waits; None for no limit.
    groups
        The communicators of groups, by name, where the files do not say them.

    Raises
    ------
    InvalidJobProgram
        If the program breaks its own rules.
    FormatError
        If a file of another tool cannot be read.
    InvalidOptions
        If there is no such option.
    """
    if streams not in ("side-by-side", "launch-order"):
        raise InvalidOptions(f'streams {streams!r}: expected "side-by-side" or "launch-order"')
    if launch_slots is not None and (not isinstance(launch_slots, int) or launch_slots < 1):
        raise InvalidOptions(f"launch_slots {launch_slots!r}: expected a whole number from 1, or None")
    if isinstance(program, str | Path):
        program = [program]
    if isinstance(program, Sequence):
        program = read_job_program(program, groups=groups)
    refuse_other(program, JobProgram, InvalidJobProgram)
    lowered = lower(program, streams=streams, launch_slots=launch_slots)
    decision = decide(lowered.operations)
    findings = findings_of(program, lowered, decision)
    is_cut_off = any(each.is_cut_off for each in program.programs)
    if decision.absences and is_cut_off:
        findings = circles_instead(findings, program, streams)
    return OrderReport(
        name=program.name,
        cannot_hang=decision.cannot_hang,
        streams=streams,
        launch_slots=launch_slots,
        num_ranks=len(lowered.classes.class_of),
        num_programs=len(lowered.classes),
        num_operations=sum(
            len(each.ranks) * sum(len(thread.operations) for thread in each.threads)
            for each in program.programs
        ),
        findings=findings,
        outside=(NOT_RECORDED, *OUTSIDE) if is_cut_off else OUTSIDE,
    )


def circles_instead(
    findings: tuple[OrderFinding, ...], job: JobProgram, streams: StreamRule
) -> tuple[OrderFinding, ...]:
    """Return the findings, with circles in place of what their ranks lack, if records end while ranks wait.

    A record of a job that hangs says what a rank has called, not where it waits. A rank that lacks an
    operation may wait for what it has called, or it may have stopped for a reason of its own. Here it waits.
    If ranks then wait in a circle, they are shown instead of what each of them lacks.
    """
    continued = _continued(job)
    lowered = lower(continued, streams=streams)
    decision = decide(lowered.operations)
    circles = [finding for finding in findings_of(continued, lowered, decision) if finding.kind == "circle"]
    explained = {rank for circle in circles for rank in circle.ranks}
    rest = [
        finding for finding in findings if finding.kind != "count" or not explained.issuperset(finding.ranks)
    ]
    return (*circles, *rest)


def _continued(job: JobProgram) -> JobProgram:
    """Return the job whose ranks wait for all that they called, and then call what they lack."""
    calls: dict[int, defaultdict[str, list[EnqueuedCollective]]] = {}
    for program in job.programs:
        for rank in program.ranks:
            calls[rank] = defaultdict(list)
            for thread in program.threads:
                for meeting in thread.meetings():
                    if isinstance(meeting, EnqueuedCollective):
                        calls[rank][meeting.group].append(meeting)
    lacking: defaultdict[int, list[EnqueuedCollective]] = defaultdict(list)
    for group in job.groups:
        for ranks in group.communicators:
            longest = max((calls[rank][group.name] for rank in ranks), key=len)
            for rank in ranks:
                missing = longest[len(calls[rank][group.name]) :]
                lacking[rank] += [call.model_copy(update={"wait": "nobody", "stack": ()}) for call in missing]
    programs = []
    for program in job.programs:
        if not program.is_cut_off or len(program.threads) != 1:
            programs.append(program)
            continue
        (thread,) = program.threads
        groups = dict.fromkeys(
            meeting.group for meeting in thread.meetings() if not isinstance(meeting, EnqueuedTransfer)
        )
        waits = [EnqueuedWait(op="wait", group=group) for group in groups]
        for rank in program.ranks:
            operations = (*thread.operations, *waits, *lacking[rank])
            programs.append(
                RankProgram(ranks=(rank,), threads=(HostThread(name=thread.name, operations=operations),))
            )
    return job.model_copy(update={"programs": tuple(programs)})


InputKind = Literal["job program", "dump", "schedule", "graph", "FX graph", "Kineto trace"]
SNIFFED_BYTES = 1 << 16


def read_job_program(paths: Sequence[str | Path], *, groups: GivenGroups | None = None) -> JobProgram:
    """Read a job program from its file, or from files of another kind.

    Parameters
    ----------
    paths
        A job program; schedules, and graphs with theirs; or one file for each rank: graphs, FX graphs, Kineto
        traces, dumps of the flight recorder.
    groups
        The communicators of groups, by name, where the files do not say them.

    Raises
    ------
    InvalidJobProgram
        If it is a job program that breaks its own rules, or if the files do not belong together.
    FormatError, InvalidSchedule, InvalidGraph
        If a file is damaged.
    """
    if not paths:
        raise InvalidJobProgram("a job program is needed (got no files)")
    kinds = [kind_of_input(path) for path in paths]
    match tuple(sorted(set(kinds))):
        case ("dump",):
            return read_flight_recorder(paths, groups=groups)
        case ("FX graph",):
            return read_fx_graphs(paths, groups=groups)
        case ("Kineto trace",):
            return read_kineto_order(paths, groups=groups)
        case ("job program",) if len(paths) == 1:
            return load_job_program(paths[0])
        case ("schedule",) | ("graph",) | ("graph", "schedule"):
            pairs = list(zip(paths, kinds, strict=True))
            schedules = [load_schedule(path) for path, kind in pairs if kind == "schedule"]
            graphs = in_order_of_ranks([path for path, kind in pairs if kind == "graph"])
            return program_of_plans(schedules, list(map(load_graph, graphs)), groups=groups)
        case ("job program",):
            raise InvalidJobProgram(f"one job program is needed (got {len(paths)} files)")
    told = ", ".join(f"{Path(path).name}: {kind}" for path, kind in zip(paths, kinds, strict=True))
    raise InvalidJobProgram(f"files of one job must be of one kind; these are {told}")


def kind_of_input(path: str | Path) -> InputKind:
    """Return what a file is, by how it begins; a job program if nothing says otherwise.

    Raises
    ------
    FormatError
        If it is none of these.
    """
    with open_binary(path) as file:
        head = file.read(SNIFFED_BYTES)
    if is_dump(head):
        return "dump"
    if is_fx_graph(head):
        return "FX graph"
    if b'"traceEvents"' in head or b'"deviceProperties"' in head:
        return "Kineto trace"
    if b'"profile_sha256"' in head and b'"programs"' not in head:
        return "schedule"
    if b'"wires"' in head and b'"communicators"' in head and b'"programs"' not in head:
        return "graph"
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        raise FormatError(
            path,
            "expected a job program, schedule, graph, FX graph, Kineto trace or dump of the flight recorder",
        )
    if b'"gradients"' in head and b'"programs"' not in head:
        raise FormatError(path, "this is a profile: give the schedules that `pace optimize` made of it")
    return "job program"
