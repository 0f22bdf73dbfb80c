"""What is sent to ask for the schedule of a profile or of a graph."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pace.client.documents import ScheduleResource
from pace.documents.base import refuse_other
from pace.documents.graph.collective_graph import CollectiveGraph
from pace.documents.options import Options
from pace.documents.profile import Profile
from pace.errors import InvalidOptions, InvalidProfile

if TYPE_CHECKING:
    from pace.client.graph_documents import GraphScheduleResource


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
            request["options"] = options.model_dump(mode="json")
        if job is not None:
            request["job"] = job
        return cls(noun="profile", path="/v1/schedules", request=request, resource=ScheduleResource)

    @classmethod
    def _of_graph(cls, graph: CollectiveGraph, options: Options, job: str | None) -> Self:
        # Imported here because a training process must not load the simulator to fetch a schedule.
        from pace.client.graph_documents import GraphScheduleResource

        options.refuse_others("graph")
        if job is not None:
            raise InvalidOptions(f'job "{job}": the service keeps no graphs by job: leave the job out')
        request = {"graph": graph.model_dump(mode="json"), "memory_bytes": options.memory_bytes}
        return cls(noun="graph", path="/v1/graph-schedules", request=request, resource=GraphScheduleResource)
