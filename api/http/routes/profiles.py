"""Routes under /v1/profiles, and /v1/imports, which converts files of other tools to profiles."""

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from pace.api.errors import NotFound
from pace.api.http.answers import JSON, document_answer, profile_answer
from pace.api.http.body import read_body
from pace.api.http.openapi import json_body, problems
from pace.api.http.parameters import Contains, Cursor, Limit, RunningService
from pace.api.http.security import Admin, Reader, Submitter, audit
from pace.api.questions.reading import read_profile
from pace.api.workers.imports.read_import import read_import
from pace.client.documents import ProfilePage, ProfileResource, ProfileSummary, example_profile
from pace.client.page_documents import ImportQuestion, ImportResource
from pace.documents.profile import Profile
from pace.documents.schedule import Sha256

router = APIRouter(prefix="/v1", tags=["Profiles"])


# A page of another site cannot send this type without permission (CORS).
BYTES = "application/octet-stream"
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The file, or an archive (tar, zip) of the traces of several ranks; each may be "
        "compressed by gzip, as may the body with `Content-Encoding: gzip`",
        "content": {
            BYTES: {"schema": {"type": "string", "format": "binary"}},
            JSON: {"schema": {}, "example": example_profile()},
        },
    }
}


@router.post(
    "/profiles",
    summary="Store a profile",
    status_code=201,
    responses={
        201: {
            "model": ProfileSummary,
            "description": "The stored profile without its content; `Location` is its path",
        },
        **problems(401, 403, 408, 413, 415, 422, 429, 500, 503, 507),
    },
    openapi_extra=json_body(Profile, example_profile()),
)
async def create_profile(request: Request, service: RunningService, principal: Submitter) -> Response:
    """Store a profile; its identifier is the SHA-256 of its content."""
    received = await read_body(request, principal.tenant, read_profile)
    summary = await service.put_profile(principal.tenant, received)
    audit("profile-stored", principal, profile=summary.id)
    return document_answer(summary).response(201, {"Location": f"/v1/profiles/{summary.id}"})


@router.get(
    "/profiles", summary="List profiles", response_model=ProfilePage, responses=problems(401, 403, 422, 429)
)
async def list_profiles(
    request: Request,
    service: RunningService,
    principal: Reader,
    contains: Contains = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List profiles without their content, newest first."""
    page = await service.in_database(service.store.list_profiles, principal.tenant, contains, limit, cursor)
    return document_answer(page).response_to(request)


@router.get(
    "/profiles/{profile_id}",
    summary="Get a profile",
    response_model=ProfileResource,
    responses=problems(401, 403, 404, 422, 429),
)
async def get_profile(
    request: Request,
    service: RunningService,
    principal: Reader,
    profile_id: Annotated[Sha256, Path(description="Identifier of the profile")],
) -> Response:
    """Return a stored profile."""
    stored = await service.read(service.store.get_profile, principal.tenant, profile_id)
    if stored is None:
        raise NotFound(f"there is no profile {profile_id}")
    return (await asyncio.to_thread(profile_answer, stored)).response_to(request)


@router.delete(
    "/profiles/{profile_id}",
    summary="Delete a profile",
    status_code=204,
    responses=problems(401, 403, 404, 409, 422, 429),
)
async def delete_profile(
    service: RunningService,
    principal: Admin,
    profile_id: Annotated[Sha256, Path(description="Identifier of the profile")],
) -> None:
    """Delete a profile, unless a stored result or an unfinished task refers to it."""
    if not await service.in_database(service.store.delete_profile, principal.tenant, profile_id):
        raise NotFound(f"there is no profile {profile_id}")
    audit("profile-deleted", principal, profile=profile_id)


@router.post(
    "/imports",
    summary="Convert a file to a profile",
    status_code=201,
    responses={
        201: {
            "model": ImportResource,
            "description": "The stored profile without its content; `Location` is its path",
        },
        **problems(401, 403, 408, 413, 415, 422, 429, 500, 501, 503, 507),
    },
    openapi_extra=_BODY,
)
async def create_import(
    request: Request,
    service: RunningService,
    principal: Submitter,
    question: Annotated[ImportQuestion, Query()],
) -> Response:
    """Convert a trace of PyTorch, Horovod or Chakra, or a table of layers, to a profile and store it.

    The format is recognized from the file, unless `format` names it. Tables and Chakra traces also need
    `workers`, and tables `bandwidth_gbps`. Send several files as one archive: the Kineto traces of a job's
    ranks and, if they hold no shapes, one execution trace or list of parameters.
    """
    received = await read_body(
        request, principal.tenant, read_import, question.model_dump_json(), media_types=(BYTES,)
    )
    summary = await service.put_profile(principal.tenant, received.profile)
    found = json.loads(received.found)
    audit("profile-imported", principal, profile=summary.id, format=found["format"])
    document = ImportResource(**summary.model_dump(), **found)
    return document_answer(document).response(201, {"Location": f"/v1/profiles/{summary.id}"})
