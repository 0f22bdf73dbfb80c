"""Headroom: what a job could gain from better buckets, from PACE, and from any schedule at all."""

import json
import zlib
from datetime import datetime

from pace.api.questions.kind import Question, QuestionKind, ReadLimits, Tell
from pace.api.questions.reading import about_profile
from pace.client.documents import ProfileQuestion, ResourceId, example_profile
from pace.documents.base import Document
from pace.documents.profile import parse_profile
from pace.documents.schedule import Sha256
from pace.formats.import_report import import_warnings
from pace.whatif.headroom import Headroom, headroom


class HeadroomRequest(ProfileQuestion):
    """Body of ``POST /v1/headroom``: a profile, and whether to ask about clipping by the global norm, too."""

    clip: bool = False


class HeadroomSummary(Document):
    """A stored headroom report without its content; `id` follows from profile, question and version."""

    id: ResourceId
    profile_sha256: Sha256
    created_at: datetime


class HeadroomResource(HeadroomSummary):
    """A stored headroom report, as ``pace headroom --json`` prints it."""

    headroom: Headroom


def _read(request: HeadroomRequest, limits: ReadLimits) -> Question:
    about = about_profile(request.profile, request.profile_id, limits)
    return Question(kind=KIND.name, options=json.dumps({"clip": request.clip}), **about)


def _answer(profile_document: bytes, options: str, tell: Tell) -> bytes:
    del tell  # it takes a few solves
    profile = parse_profile(zlib.decompress(profile_document))
    made = headroom(profile, warnings=tuple(import_warnings(profile)), **json.loads(options))
    return json.dumps(made.to_document(), allow_nan=False).encode()


KIND = QuestionKind(
    name="headroom",
    noun="headroom report",
    path="/v1/headroom",
    tag="Headroom",
    title="Estimate a job's headroom",
    description="Estimate what a job gains with better buckets, with PACE and with the best possible "
    "schedule, and where its time goes.",
    example={"profile": example_profile(), "clip": True},
    request=HeadroomRequest,
    resource=HeadroomResource,
    summary=HeadroomSummary,
    columns={"profile_sha256": "input_sha256"},
    parts={"profile": parse_profile},
    read=_read,
    answer=_answer,
    samples=((example_profile(), json.dumps({"clip": True})),),
    about_profile=True,
    simulates=False,
    work="headroom",
)
