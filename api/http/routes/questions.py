"""Routes of all kinds of questions: to ask, to get an answer, to list them and to delete one."""

import asyncio
import re
import zlib
from dataclasses import replace
from enum import Enum
from typing import Any, get_args

from fastapi import APIRouter, Request
from starlette.responses import Response

from pace.api.access import Principal
from pace.api.errors import NotFound, ResultDeleted
from pace.api.http.answers import JSON, PreparedAnswer, document_answer
from pace.api.http.body import read_body
from pace.api.http.openapi import json_body, problems
from pace.api.http.parameters import Cursor, KnownAnswers, Limit, QuestionId, RunningService
from pace.api.http.question_answers import QuestionAnswers
from pace.api.http.routes.tasks import unfinished, wait_for_task
from pace.api.http.security import Admin, Reader, Submitter, audit
from pace.api.questions.all_kinds import KINDS, answer_csv, read_question
from pace.api.questions.kind import QuestionKind
from pace.api.service import Service
from pace.client.documents import TaskResource

CSV = "text/csv"


async def create_question(
    kind: QuestionKind, request: Request, service: Service, answers: QuestionAnswers, principal: Principal
) -> Response:
    """Answer a POST of a question."""
    tenant = principal.tenant
    question = await read_body(request, tenant, read_question, kind.name)
    # Bodies that are read once may be sent by several.
    question = replace(question, asked_by=principal.key_id or principal.subject)
    submitted = await service.submit(tenant, question)
    asked = {_word(kind): submitted.result_id, kind.input_name: question.input_sha256}
    audit(f"{kind.name}-requested", principal, **asked)
    created = {"Location": f"{kind.path}/{submitted.result_id}"}
    if submitted.result is not None:
        return (await answers.keep(tenant, kind, submitted.result)).response(201, created)
    status = await wait_for_task(service, tenant, submitted, request.headers.get("prefer", ""))
    if status is not None and status.live:
        return unfinished(status)
    if status is not None and status.document is not None and submitted.unsolved is not None:
        solved = replace(submitted.unsolved, document=status.document)
        return (await answers.keep(tenant, kind, solved)).response(201, created)
    answer = await answers.get(tenant, kind, submitted.result_id)
    if answer is None:
        raise ResultDeleted(f"the {kind.noun} was deleted while it was computed; send the request again")
    return answer.response(201, created)


async def get_question(
    kind: QuestionKind,
    request: Request,
    answers: QuestionAnswers,
    principal: Principal,
    question_id: str,
    headers: dict[str, str] | None = None,
) -> Response:
    """Answer a GET of an answered question."""
    answer = await answers.get(principal.tenant, kind, question_id)
    if answer is None:
        raise not_found(kind, question_id)
    return answer.response_to(request, headers)


async def get_csv(
    kind: QuestionKind, request: Request, service: Service, principal: Principal, question_id: str
) -> Response:
    """Answer a GET with `Accept: text/csv`."""
    stored = await service.read(service.questions.get, principal.tenant, kind, question_id)
    if stored is None:
        raise not_found(kind, question_id)
    text = await service.compute(answer_csv, kind.name, stored.document, tenant=principal.tenant)
    return PreparedAnswer.of(text, f"{CSV}; charset=utf-8").response_to(request, _VARIES)


async def get_input(
    kind: QuestionKind, service: Service, principal: Principal, question_id: str
) -> PreparedAnswer:
    """Return the document that a question is about."""
    found = await service.in_database(service.questions.get_documents, principal.tenant, kind, question_id)
    if found is None:
        raise not_found(kind, question_id)
    held = await service.documents.whole(found[0])
    return PreparedAnswer.of(await asyncio.to_thread(zlib.decompress, held.document))


def not_found(kind: QuestionKind, question_id: str) -> NotFound:
    """Return the error for an identifier that does not exist."""
    return NotFound(f'there is no {kind.noun} "{question_id}"')


def _word(kind: QuestionKind) -> str:
    return kind.name.replace("-", "_")


def _prefers_csv(accept: str) -> bool:
    """Whether CSV is preferred to JSON; of equal weights, the one that is named rather than a wildcard."""
    given: dict[str, float] = {}
    for part in accept.lower().split(","):
        media_type, *parameters = (each.strip() for each in part.split(";"))
        given[media_type] = next((_weight(each[2:]) for each in parameters if each[:2] == "q="), 1.0)
    csv, json = (
        next(((given[name], exact) for name, exact in names if name in given), (0.0, 0))
        for names in (
            ((CSV, 2), ("text/*", 1), ("*/*", 0)),
            ((JSON, 2), ("application/*", 1), ("*/*", 0)),
        )
    )
    return csv > json and csv[0] > 0


def _weight(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](\.\d{0,3})?", text) else 0.0


_VARIES = {"Vary": "Accept"}


def _add_routes(router: APIRouter, kind: QuestionKind) -> None:
    """Add the routes that all kinds have. OpenAPI describes them by the kind's documents."""
    name, one = _word(kind), f"{kind.path}/{{question_id}}"
    tags: list[str | Enum] = [kind.tag]
    resource = {"$ref": f"#/components/schemas/{kind.resource.__name__}"}
    content: dict[str, Any] = {JSON: {"schema": resource}}
    found = f"The {kind.noun}"
    if kind.csv is not None:
        content[CSV] = {"schema": {"type": "string"}}
        found += "; CSV if the request has `Accept: text/csv`"

    async def create(
        request: Request, service: RunningService, answers: KnownAnswers, principal: Submitter
    ) -> Response:
        return await create_question(kind, request, service, answers, principal)

    async def listed(
        request: Request,
        service: RunningService,
        principal: Reader,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response:
        page = await service.in_database(service.questions.list, principal.tenant, kind, limit, cursor)
        return document_answer(page).response_to(request)

    async def get(
        request: Request,
        service: RunningService,
        answers: KnownAnswers,
        principal: Reader,
        question_id: QuestionId,
    ) -> Response:
        if kind.csv is None:
            return await get_question(kind, request, answers, principal, question_id)
        if _prefers_csv(request.headers.get("accept", "")):
            return await get_csv(kind, request, service, principal, question_id)
        return await get_question(kind, request, answers, principal, question_id, _VARIES)

    async def get_brought(
        request: Request, service: RunningService, principal: Reader, question_id: QuestionId
    ) -> Response:
        return (await get_input(kind, service, principal, question_id)).response_to(request)

    async def delete(
        service: RunningService, answers: KnownAnswers, principal: Admin, question_id: QuestionId
    ) -> None:
        deleted = await service.in_database(service.questions.delete, principal.tenant, kind, question_id)
        answers.drop(principal.tenant, kind, question_id)
        if not deleted:
            raise not_found(kind, question_id)
        audit(f"{kind.name}-deleted", principal, **{name: question_id})

    router.add_api_route(
        kind.path,
        create,
        methods=["POST"],
        tags=tags,
        name=f"create_{name}",
        summary=kind.title,
        description=f"{kind.description}\n\n{_WAITS}",
        status_code=201,
        responses={
            201: {"model": kind.resource, "description": "The answer; `Location` is its path"},
            202: {
                "model": TaskResource,
                "description": "The task, if the answer takes longer than the wait; `Location` is its path",
            },
            **problems(401, 403, 408, 409, 413, 415, 422, 429, 500, 503, 507),
        },
        openapi_extra=json_body(kind.request, kind.example, kind.further_examples),
    )
    if not kind.by_job:
        router.add_api_route(
            kind.path,
            listed,
            methods=["GET"],
            tags=tags,
            name=f"list_{name}s",
            summary=f"List {kind.noun}s",
            description=f"List {kind.noun}s without their content, newest first.",
            response_model=kind.page,
            responses=problems(401, 403, 422, 429),
        )
    router.add_api_route(
        one,
        get,
        methods=["GET"],
        tags=tags,
        name=f"get_{name}",
        summary=f"Get a {kind.noun}",
        description=f"Return a stored {kind.noun}.",
        response_class=Response,
        responses={
            200: {"content": content, "description": found},
            **problems(401, 403, 404, 422, 429, 500, 503),
        },
    )
    if not kind.about_profile:
        brought = kind.input_name
        annotation = kind.request.model_fields[brought].annotation
        # In a union each class is annotated with its tag.
        models = [get_args(each)[0] for each in get_args(annotation)] or [annotation]
        documents = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in models]
        router.add_api_route(
            f"{one}/{brought}",
            get_brought,
            methods=["GET"],
            tags=tags,
            name=f"get_{name}_{brought}",
            summary=f"Get the {brought} of a {kind.noun}",
            description=f"Return the {brought} that a stored {kind.noun} is about.",
            response_class=Response,
            responses={
                200: {
                    "content": {
                        JSON: {"schema": documents[0] if len(documents) == 1 else {"oneOf": documents}}
                    },
                    "description": f"The {brought}",
                },
                **problems(401, 403, 404, 422, 429, 500, 503),
            },
        )
    router.add_api_route(
        one,
        delete,
        methods=["DELETE"],
        tags=tags,
        name=f"delete_{name}",
        summary=f"Delete a {kind.noun}",
        description=f"Delete a stored {kind.noun}"
        + ("; its profile stays stored." if kind.about_profile else "."),
        status_code=204,
        responses=problems(401, 403, 404, 422, 429),
    )


_WAITS = """With `Prefer: wait=N` the service answers 202 after N seconds at the latest, with
`Prefer: respond-async` at once. Follow the task with GET `/v1/tasks/{id}/events`, or cancel it with
DELETE."""

router = APIRouter()
for each in KINDS.values():
    _add_routes(router, each)
