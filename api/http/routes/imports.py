"""The route /v1/imports: convert files of other tools to profiles."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from pace.api.http.answers import JSON, document_answer
from pace.api.http.body import read_body
from pace.api.http.openapi import problems
from pace.api.http.parameters import RunningService
from pace.api.http.security import Submitter, audit
from pace.api.workers.imports.read_import import read_import
from pace.client.documents import example_profile
from pace.client.page_documents import ImportQuestion, ImportResource

router = APIRouter(prefix="/v1/imports", tags=["Profiles"])

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
    "",
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
