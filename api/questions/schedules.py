"""Schedules: what the service is for."""

import zlib

from pace.api.questions.kind import SCHEDULE, Question, QuestionKind, ReadLimits, Tell
from pace.api.questions.reading import about_profile, canonical_json, parser_of
from pace.client.documents import ScheduleRequest, ScheduleResource, ScheduleSummary, example_profile
from pace.documents.options import Options
from pace.documents.profile import parse_profile
from pace.kinds import optimize


def _read(request: ScheduleRequest, limits: ReadLimits) -> Question:
    return Question(
        kind=SCHEDULE,
        options=canonical_json(request.options),
        job=request.job,
        **about_profile(request.profile, request.profile_id, limits),
    )


def _solve(profile_document: bytes, options: str, tell: Tell) -> bytes:
    del tell  # a solve cannot tell how far it is
    profile = parse_profile(zlib.decompress(profile_document))
    return optimize(profile, Options.model_validate_json(options)).to_json()


KIND = QuestionKind(
    name=SCHEDULE,
    noun="schedule",
    path="/v1/schedules",
    tag="Schedules",
    title="Schedule a profile",
    description="Compute the schedule of a profile. An equal request gets the stored schedule.",
    example={"profile": example_profile(), "options": {"fusion": "paper"}, "job": "two-layers"},
    request=ScheduleRequest,
    resource=ScheduleResource,
    summary=ScheduleSummary,
    columns={"profile_sha256": "input_sha256"},
    parts={"profile": parse_profile, "options": parser_of(Options)},
    read=_read,
    answer=_solve,
    samples=(),  # `pace.planning.warm_up` has all
    about_profile=True,
    simulates=False,
    long=False,
    by_job=True,
    work="solve",
    done_event="solved",
)
