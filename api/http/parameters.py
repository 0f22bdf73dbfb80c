"""Parameters that several routes share."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request

from pace.api.http.question_answers import QuestionAnswers
from pace.api.service import Service
from pace.client.documents import JobName, ResourceId
from pace.documents.schedule import Sha256


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _question_answers(request: Request) -> QuestionAnswers:
    answers: QuestionAnswers = request.app.state.question_answers
    return answers


RunningService = Annotated[Service, Depends(_service)]
KnownAnswers = Annotated[QuestionAnswers, Depends(_question_answers)]
QuestionId = Annotated[ResourceId, Path(description="Identifier, as the POST returned it")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Largest number of items in a page")]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next` of the previous page")]
OfJob = Annotated[JobName | None, Query(description="Only for this training job")]
OfFingerprint = Annotated[Sha256 | None, Query(description="Only for models with this fingerprint")]
Contains = Annotated[
    JobName | None,
    Query(description="Only those whose name contains this text; upper and lower case are equal"),
]
