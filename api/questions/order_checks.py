"""Order checks: the proof that a job's collectives cannot hang, or which ranks wait for one another."""

import json
import zlib

from pace.api.errors import ContentTooLarge
from pace.api.questions.kind import Question, QuestionKind, ReadLimits, Tell
from pace.api.questions.reading import about_document
from pace.client.page_documents import OrderCheckRequest, OrderCheckResource, OrderCheckSummary
from pace.documents.order.job_program import parse_job_program


def _read(request: OrderCheckRequest, limits: ReadLimits) -> Question:
    program = request.program
    size = sum(len(thread.operations) for each in program.programs for thread in each.threads)
    if size > limits.max_ops:
        raise ContentTooLarge(
            f"the program has {size} operations; this service takes at most {limits.max_ops}"
        )
    return Question(
        kind=KIND.name,
        options=json.dumps({"streams": request.streams, "launch_slots": request.launch_slots}),
        **about_document(program.sha256, program.name, program.to_json().decode()),
    )


def _answer(program_document: bytes, options: str, tell: Tell) -> bytes:
    del tell  # it takes a moment
    from pace.order.check_order import check_order  # the serving process only names this function

    program = parse_job_program(zlib.decompress(program_document))
    return check_order(program, **json.loads(options)).model_dump_json().encode()


_SUM = {"op": "all-reduce", "group": "world", "name": "loss", "size_bytes": 4, "wait": "nobody"}
_EXAMPLE = {
    "name": "two ranks",
    "groups": [{"name": "world", "communicators": [[0, 1]]}],
    "programs": [
        {"ranks": [0], "threads": [{"operations": [_SUM, {"op": "synchronize"}, _SUM]}]},
        {"ranks": [1], "threads": [{"operations": [_SUM]}]},
    ],
}

KIND = QuestionKind(
    name="order",
    noun="order check",
    path="/v1/order-checks",
    tag="Order checks",
    title="Check a job's order of collectives",
    description="Prove that a job's collectives cannot hang, or show which ranks wait for one another, and "
    "in which collectives.",
    example={"program": _EXAMPLE},
    request=OrderCheckRequest,
    resource=OrderCheckResource,
    summary=OrderCheckSummary,
    columns={"name": "input_name", "program_sha256": "input_sha256"},
    parts={"program": parse_job_program},
    read=_read,
    answer=_answer,
    samples=((_EXAMPLE, json.dumps({"streams": "side-by-side", "launch_slots": None})),),
    simulates=False,
    work="order check",
)
