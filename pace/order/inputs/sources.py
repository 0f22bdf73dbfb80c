"""Job programs from files, told by their content: one document, or files of one kind for all ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pace.documents.graph.collective_graph import load_graph
from pace.documents.order.job_program import JobProgram, load_job_program
from pace.documents.schedule import load_schedule
from pace.errors import FormatError, InvalidJobProgram
from pace.formats.reading import open_binary
from pace.order.inputs.flight_recorder import is_dump, read_flight_recorder
from pace.order.inputs.fx_graphs import is_fx_graph, read_fx_graphs
from pace.order.inputs.job_groups import GivenGroups, in_order_of_ranks
from pace.order.inputs.kineto_traces import read_kineto_order
from pace.order.inputs.plans import program_of_plans

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
    return "job program"
