"""The OpenAPI document against the service: schemathesis sends what the document allows, and more."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.process import ServiceProcess

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.slow
def test_answers_are_those_of_the_document(tmp_path: Path) -> None:
    """No answer of 5xx, and none that the document does not describe, whatever is sent."""
    factor = max(int(os.environ.get("PACE_TEST_EXAMPLES", "0")), 1)
    with ServiceProcess(tmp_path, solve_timeout_s=10) as service:
        document = schemathesis.openapi.from_url(f"{service.url}/openapi.json")
        while service.http.get("/readyz").status_code != 200:
            time.sleep(0.1)  # not ready is a 503, and not what is asked about here
        operations = [result.ok() for result in document.get_all_operations() if isinstance(result, Ok)]
        assert len(operations) >= 22

        for operation in operations:
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                has_input = bool(operation.body or operation.query or operation.path_parameters)
                if mode is GenerationMode.NEGATIVE and not has_input:
                    continue

                @settings(
                    # A body has many ways to be wrong; a path's id or a page's size has few.
                    max_examples=factor * (4 if operation.body else 2 if has_input else 1),
                    deadline=None,
                    database=None,
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=operation.as_strategy(generation_mode=mode))
                def answer_is_described(case: "schemathesis.Case[Any]") -> None:
                    case.call_and_validate(base_url=service.url, checks=CHECKS, timeout=250)

                answer_is_described()

        answered = service.http.get("/metrics").text
        for operation in operations:
            route = f'method="{operation.method.upper()}",route="{operation.path}"'
            assert route in answered, f"{route} was never asked"
