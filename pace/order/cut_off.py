"""Records that end while ranks wait: circles among ranks that lack operations of one another.

A record of a job that hangs says what a rank has called, not where it waits. A rank that lacks an operation
may wait for what it has called, or it may have stopped for a reason of its own. Here it waits. If ranks then
wait in a circle, they are shown instead of what each of them lacks.
"""

from collections import defaultdict

from pace.documents.order.job_program import (
    EnqueuedCollective,
    EnqueuedTransfer,
    EnqueuedWait,
    HostThread,
    JobProgram,
    RankProgram,
)
from pace.documents.order.order_report import OrderFinding, StreamRule
from pace.order.findings import findings_of
from pace.order.lowering import lower
from pace.solver.collective_order.decision import decide


def circles_instead(
    findings: tuple[OrderFinding, ...], job: JobProgram, streams: StreamRule
) -> tuple[OrderFinding, ...]:
    """Return the findings, with circles in place of what their ranks lack."""
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
