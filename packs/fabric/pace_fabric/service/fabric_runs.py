"""Fabric runs: whole training runs over a fabric, simulated."""

import json
import zlib

from pace.api.errors import ContentTooLarge
from pace.api.questions.kind import Question, QuestionKind, ReadLimits, Tell
from pace.api.questions.reading import about_document
from pace.errors import InvalidOptions
from pace_fabric.documents.reading import parse_document
from pace_fabric.documents.scenario import FabricScenario
from pace_fabric.service.documents import (
    FabricPolicyResult,
    FabricRunRequest,
    FabricRunResource,
    FabricRunResult,
    FabricRunSummary,
)

MOST_WORKERS = 1000
MOST_WORK_S = 120.0


def _read(request: FabricRunRequest, limits: ReadLimits) -> Question:
    del limits
    scenario, policies = request.scenario, request.policies
    if scenario.num_workers > MOST_WORKERS:
        raise ContentTooLarge(
            f"{scenario.num_workers} workers; this service takes at most {MOST_WORKERS} workers"
        )
    try:
        scenario.refuse_long(policies, MOST_WORK_S)
    except InvalidOptions as error:
        raise ContentTooLarge(str(error)) from None
    return Question(
        kind=KIND.name,
        options=json.dumps(policies),
        num_steps=len(policies),
        **about_document(scenario.sha256, scenario.name, scenario.model_dump_json()),
    )


def _answer(scenario_document: bytes, options: str, tell: Tell) -> bytes:
    from pace_fabric.simulation import simulate_fabric  # the serving process only names this function

    scenario = parse_document(FabricScenario, zlib.decompress(scenario_document))
    results = []
    for number, policy in enumerate(json.loads(options), start=1):
        results.append(FabricPolicyResult.model_validate(simulate_fabric(scenario, policy).to_document()))
        tell(number)
    return FabricRunResult(policies=tuple(results)).model_dump_json().encode()


_SAMPLE = {"name": "warm-up", "machines": 2, "duration_s": 1, "delay_bound": 4}

KIND = QuestionKind(
    name="fabric-run",
    noun="fabric run",
    path="/v1/fabric-runs",
    tag="Fabric runs",
    title="Simulate a fabric run",
    description="Simulate asynchronous training in a scenario under several policies. An equal request gets "
    "the stored answer.",
    example={
        "scenario": {"machines": 4, "duration_s": 5, "delay_bound": 10},
        "policies": ["mlfabric-a", "ring"],
    },
    request=FabricRunRequest,
    resource=FabricRunResource,
    summary=FabricRunSummary,
    columns={"name": "input_name", "scenario_sha256": "input_sha256", "num_policies": "num_steps"},
    read=_read,
    answer=_answer,
    samples=((_SAMPLE, json.dumps(["mlfabric-a", "mlfabric-s", "async"])),),
    simulates=False,
)

KINDS = (KIND,)
