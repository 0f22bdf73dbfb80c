"""The service's client, used by the command line and the runtime. Needs ``pace-scheduler[client]``."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, overload

import httpx

from pace.client.documents import ReportRequest, ReportResource, ScheduleResource
from pace.client.service_requests import ServiceRequests, problem_of
from pace.documents.base import refuse_other
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.documents.schedule import Schedule
from pace.errors import InvalidOptions, InvalidProfile, ServiceUnavailable

if TYPE_CHECKING:
    from pace.client.graph_documents import GraphScheduleResource
    from pace.documents.order.job_program import JobProgram
    from pace.documents.order.order_report import OrderReport, StreamRule
    from pace.whatif import Grid, WhatIf
    from pace.whatif.graphs import GraphGrid, GraphWhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleQuestion:
    """A request for a schedule.

    Attributes
    ----------
    noun
        What the schedule is of, for messages.
    path, request, resource
        Where the request is sent, its body, and the document of the answer.
    """

    noun: str
    path: str
    request: dict[str, Any]
    resource: "type[ScheduleResource] | type[GraphScheduleResource]"

    @classmethod
    def of(cls, profile: Profile | CollectiveGraph, options: Options | None, job: str | None) -> Self:
        """Return the request for a profile or a graph.

        Raises
        ------
        InvalidProfile
            If it is neither.
        InvalidOptions
            If a graph comes with a job or with options of profiles.
        """
        if isinstance(profile, CollectiveGraph):
            return cls._of_graph(profile, Options() if options is None else options, job)
        refuse_other(profile, Profile, InvalidProfile)
        request: dict[str, Any] = {"profile": profile.model_dump(mode="json")}
        if options is not None:
            refuse_other(options, Options, InvalidOptions)
            request["options"] = options.model_dump(mode="json")
        if job is not None:
            request["job"] = job
        return cls(noun="profile", path="/v1/schedules", request=request, resource=ScheduleResource)

    @classmethod
    def _of_graph(cls, graph: CollectiveGraph, options: Options, job: str | None) -> Self:
        # Imported here because a training process must not load the simulator to fetch a schedule.
        from pace.client.graph_documents import GraphScheduleResource

        refuse_other(options, Options, InvalidOptions)
        options.refuse_others("graph")
        if job is not None:
            raise InvalidOptions(f'job "{job}": the service keeps no graphs by job: leave the job out')
        request = {"graph": graph.model_dump(mode="json"), "memory_bytes": options.memory_bytes}
        return cls(noun="graph", path="/v1/graph-schedules", request=request, resource=GraphScheduleResource)


class Client(ServiceRequests):
    """A connection to the scheduling service.

    Every method repeats its request while the service cannot be reached or is overloaded, after
    ``Retry-After``, until the time-out; all requests can be repeated safely. Every answer is checked to be
    whole and to fit the request.

    Parameters
    ----------
    url
        Address of the service, such as ``http://127.0.0.1:8080``.
    api_key
        Sent as a bearer token, without white space around it.
    timeout_s
        Seconds that one method may take, including repeated requests and the wait for the solve.
    ca_file
        PEM file of the certificate authorities to trust; default: those in ``SSL_CERT_FILE`` or
        ``SSL_CERT_DIR``, else the public ones.

    Raises
    ------
    InvalidOptions
        If the address is no URL, or has a user name or a password. If the key is no text, or the time-out
        is no number of seconds above 0 and up to 2,000,000.
    InvalidUse
        From every method: after ``close``.
    ServiceUnavailable
        If the certificates cannot be read, or the key cannot be one. From every method: if the service is
        not reached within the time-out, fails, or sends an invalid answer.
    RequestRefused
        From every method: if the service refuses the request as invalid, or as too large.
    """

    def healthy(self) -> bool:
        """Return whether the service answers; sends one request."""
        try:
            return self._send(self._deadline(), "GET", "/healthz").status == 200
        except (httpx.HTTPError, ServiceUnavailable):
            return False

    def newest_schedule(self, job: str, fingerprint: str) -> Schedule | None:
        """Return a job's newest schedule for a model, or None when it has none."""
        asked = {"job": job, "fingerprint": fingerprint}
        answer = self._request(self._deadline(), "GET", "/v1/schedules", params=asked)
        if answer.status == 404:
            if problem_of(answer.body) == "not-found":
                return None
            asked_for = "it answered 404 to GET /v1/schedules"
            refusal = f"{self.url} is not the address of a PACE service: {asked_for}"
            raise ServiceUnavailable(self._with_releases(refusal))
        schedule = self._parse(answer, ScheduleResource).schedule
        if schedule.fingerprint != fingerprint:
            self._nonsense(f"a schedule with fingerprint {schedule.fingerprint} instead of {fingerprint}")
        return schedule

    def create_schedule(
        self, profile: Profile | CollectiveGraph, options: Options | None = None, job: str | None = None
    ) -> Schedule:
        """Let the service compute the schedule of a profile or a graph, wait for it, and return it.

        Parameters
        ----------
        options
            As ``pace.optimize`` takes them. A graph has only ``memory_bytes``.
        job
            Name of the job under which the service keeps a profile's schedule. A graph has none.

        Raises
        ------
        InvalidProfile, InvalidGraph, InvalidOptions
            If the service refuses them, or a graph comes with a job or with options of profiles.
        """
        asked = ScheduleQuestion.of(profile, options, job)
        schedule = self._ask(asked.path, asked.request, asked.resource, waits=True).schedule
        if schedule.profile_sha256 != profile.sha256:
            self._nonsense(f"a schedule for another {asked.noun}")
        return schedule

    @overload
    def what_if(
        self, profile: Profile, grid: "Grid", *, progress: Callable[[int], None] | None = None
    ) -> "WhatIf": ...

    @overload
    def what_if(
        self, profile: CollectiveGraph, grid: "GraphGrid", *, progress: Callable[[int], None] | None = None
    ) -> "GraphWhatIf": ...

    def what_if(
        self,
        profile: Profile | CollectiveGraph,
        grid: Any,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> "WhatIf | GraphWhatIf":
        """Let the service simulate a profile's or a graph's grid.

        Returns the same as ``pace.whatif.what_if`` or ``pace.whatif.graphs.what_if_graph``.

        Parameters
        ----------
        progress
            Called with the number of cells done since the last call.

        Raises
        ------
        InvalidProfile, InvalidGraph, InvalidOptions
            If the service refuses them, or the graph cannot have another number of ranks.
        """
        # Imported here because a training process must not load the simulator to fetch a schedule.
        from pace.client.documents import WhatIfResource
        from pace.client.graph_documents import GraphWhatIfResource
        from pace.whatif import Grid, WhatIf
        from pace.whatif.graphs import GraphGrid

        found: WhatIf | GraphWhatIf
        if isinstance(profile, CollectiveGraph):
            refuse_other(grid, GraphGrid, InvalidOptions)
            asked = {"graph": profile.model_dump(mode="json"), "grid": grid.model_dump(mode="json")}
            resource = self._ask("/v1/graph-what-if", asked, GraphWhatIfResource, progress)
            found, sha256 = resource.what_if, resource.graph_sha256
        else:
            refuse_other(profile, Profile, InvalidProfile)
            refuse_other(grid, Grid, InvalidOptions)
            asked = {"profile": profile.model_dump(mode="json"), "grid": grid.model_dump(mode="json")}
            answer = self._ask("/v1/what-if", asked, WhatIfResource, progress).what_if
            found = WhatIf(profile=profile, grid=grid, cells=answer.cells, answers=answer.targets)
            sha256 = answer.profile_sha256
        if sha256 != profile.sha256 or found.grid != grid or len(found.cells) != grid.num_cells:
            self._nonsense("the answer to another question")
        return found

    def check_order(
        self,
        program: "JobProgram",
        *,
        streams: "StreamRule" = "side-by-side",
        launch_slots: int | None = None,
    ) -> "OrderReport":
        """Let the service check a job's order of collectives, and return the same as ``pace.check_order``.

        Raises
        ------
        InvalidJobProgram
            If the service refuses the program.
        """
        from pace.client.page_documents import OrderCheckRequest, OrderCheckResource

        request = OrderCheckRequest(program=program, streams=streams, launch_slots=launch_slots)
        asked = request.model_dump(mode="json", exclude_none=True)
        resource = self._ask("/v1/order-checks", asked, OrderCheckResource, waits=True)
        report = resource.report
        if resource.program_sha256 != program.sha256 or report.launch_slots != launch_slots:
            self._nonsense("the answer to another question")
        return report

    def send_report(
        self,
        schedule: Schedule,
        job: str,
        measured_iteration_s: float,
        num_iterations: int,
        plain_iteration_s: float | None = None,
    ) -> None:
        """Send the iteration times that a job measured under a schedule; see ``ReportRequest``.

        The report has a unique key, so that the service stores it once however often it is sent.
        """
        report = ReportRequest(
            job=job,
            fingerprint=schedule.fingerprint,
            profile_sha256=schedule.profile_sha256,
            predicted_iteration_s=schedule.predicted.iteration_s,
            measured_iteration_s=measured_iteration_s,
            plain_iteration_s=plain_iteration_s,
            num_iterations=num_iterations,
        )
        answer = self._request(
            self._deadline(),
            "POST",
            "/v1/reports",
            json=report.model_dump(mode="json"),
            headers={"Idempotency-Key": uuid.uuid4().hex},
        )
        self._parse(answer, ReportResource)
