"""The kinds of tasks: everything by which they differ, in one table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from pace.api.metrics import Metrics
from pace.api.settings import Settings
from pace.api.storage.questions import (
    FABRIC_RUNS,
    PREDICTIONS,
    WHAT_IFS,
    StoredAnswer,
    no_other_input,
)
from pace.api.storage.store import (
    StoredSchedule,
    find_unsolved_schedule,
    hold_schedule,
    save_schedule_request,
)
from pace.api.storage.task_inputs import TaskInput, find_profile_input, save_profile_input
from pace.api.workers.fabric_runs import answer_fabric_run
from pace.api.workers.functions import answer_what_if, solve
from pace.api.workers.predictions import answer_prediction
from pace.client.documents import TaskKindName

AnyStored = StoredSchedule | StoredAnswer[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """How tasks of one kind are stored, done and observed.

    Attributes
    ----------
    function, tells_progress
        What a worker process calls with the profile and the options, and whether it tells how far it is.
    purpose
        What the work is called in messages.
    num_processes, num_on_cluster
        How many tasks may run at once in processes of the service, and on a Dask cluster; None for as many as
        the cluster has threads.
    keeps_place
        Whether of several places one is kept for small tasks.
    starts_at_once
        Whether its processes start with the service, or with the first task.
    priority
        On a cluster: higher goes first.
    result_path
        Path of the result, up to its id.
    save_input
        Keeps what a tenant's request brings along to work on; returns its fingerprint.
    find_input
        Returns what a task works on: of a tenant, by its SHA-256 and the result's id; None if it was deleted.
    save_request
        Records a tenant's request, whose profile has this fingerprint; returns the result's id.
    hold_result
        Returns a tenant's result by its id, if it is there, and lets nobody delete it in this transaction.
    find_unsolved
        Returns what is stored of a result that is not there yet: with it, the document can be handed to those
        who wait for it without another look. None for kinds that take so long that the look does not matter.
    observe
        Counts a finished task of so many gradients and seconds.
    span, done_event
        Its name in traces, and the log's event when one is done.
    """

    function: Callable[..., bytes]
    tells_progress: bool
    purpose: str
    num_processes: Callable[[Settings], int]
    num_on_cluster: Callable[[Settings], int | None]
    keeps_place: bool = False
    starts_at_once: bool
    priority: int
    result_path: str
    save_input: Callable[[Connection, str, Any], str]
    find_input: Callable[[Connection, str, str, str], TaskInput | None]
    save_request: Callable[[Connection, str, Any, str], str]
    hold_result: Callable[[Connection, str, str], AnyStored | None]
    find_unsolved: Callable[[Connection, str, str], AnyStored | None] | None = None
    observe: Callable[[Metrics, int, float], None]
    span: str
    done_event: str


KINDS: dict[TaskKindName, TaskKind] = {
    "schedule": TaskKind(
        function=solve,
        tells_progress=False,
        purpose="the solve",
        num_processes=lambda settings: settings.solver_processes,
        num_on_cluster=lambda _: None,
        keeps_place=True,
        starts_at_once=True,
        priority=1,
        result_path="/v1/schedules/",
        save_input=save_profile_input,
        find_input=find_profile_input,
        save_request=save_schedule_request,
        hold_result=hold_schedule,
        find_unsolved=find_unsolved_schedule,
        observe=Metrics.observe_solve,
        span="solve",
        done_event="solved",
    ),
    # What-ifs have processes of their own, so that no job's start waits for a plan.
    "what-if": TaskKind(
        function=answer_what_if,
        tells_progress=True,
        purpose="the what-if",
        num_processes=lambda settings: settings.what_if_processes,
        num_on_cluster=lambda settings: settings.what_if_processes,
        starts_at_once=False,
        priority=0,
        result_path="/v1/what-if/",
        save_input=save_profile_input,
        find_input=find_profile_input,
        save_request=WHAT_IFS.save_request,
        hold_result=WHAT_IFS.hold,
        observe=Metrics.observe_what_if,
        span="what-if",
        done_event="what-if-answered",
    ),
    "prediction": TaskKind(
        function=answer_prediction,
        tells_progress=True,
        purpose="the prediction",
        num_processes=lambda settings: settings.what_if_processes,
        num_on_cluster=lambda settings: settings.what_if_processes,
        starts_at_once=False,
        priority=0,
        result_path="/v1/predictions/",
        save_input=no_other_input,
        find_input=PREDICTIONS.find_input,
        save_request=PREDICTIONS.save_request,
        hold_result=PREDICTIONS.hold,
        observe=Metrics.observe_prediction,
        span="prediction",
        done_event="predicted",
    ),
    "fabric-run": TaskKind(
        function=answer_fabric_run,
        tells_progress=True,
        purpose="the fabric run",
        num_processes=lambda settings: settings.what_if_processes,
        num_on_cluster=lambda settings: settings.what_if_processes,
        starts_at_once=False,
        priority=0,
        result_path="/v1/fabric-runs/",
        save_input=no_other_input,
        find_input=FABRIC_RUNS.find_input,
        save_request=FABRIC_RUNS.save_request,
        hold_result=FABRIC_RUNS.hold,
        observe=Metrics.observe_fabric_run,
        span="fabric-run",
        done_event="fabric-run-simulated",
    ),
}
