"""The OpenAPI document against the service: schemathesis' whole run."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.api.process import ServiceProcess

# A document may be well formed and still mean nothing, for example a gradient that no operator produces.
# The OpenAPI document cannot say that, so a refusal of what it allows is no fault.
_EXCLUDED = "positive_data_acceptance"
_SLOW = "/v1/predictions"  # simulates for seconds, and has hundreds of combinations of its options


@pytest.mark.slow
@pytest.mark.timeout(900)  # thousands of requests, of which some solve
@pytest.mark.parametrize("which", [("--exclude-path", _SLOW), ("--include-path", _SLOW)], ids=["all", "slow"])
def test_answers_are_those_of_the_document(which: tuple[str, str], tmp_path: Path) -> None:
    """No answer of 5xx, and none that the document does not describe, whatever is sent, in whatever order."""
    if examples := os.environ.get("PACE_TEST_EXAMPLES"):
        amount = ["--max-examples", examples]
    else:
        amount = ["--max-examples", "1", "--seed", "1"]
        if "--include-path" in which:
            amount += ["--phases", "examples,fuzzing,stateful"]
    with ServiceProcess(tmp_path, solve_timeout_s=10) as service:
        while service.http.get("/readyz").status_code != 200:
            time.sleep(0.1)  # not ready is a 503, and not what is asked about here
        run = subprocess.run(
            [
                *(Path(sys.executable).with_name("schemathesis"), "run", f"{service.url}/openapi.json"),
                *("--exclude-checks", _EXCLUDED, "--request-timeout", "250", "--no-color", *which, *amount),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        paths = service.http.get("/openapi.json").json()["paths"]
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr
    slow = len(paths[_SLOW])
    tested = slow if "--include-path" in which else sum(map(len, paths.values())) - slow
    assert f"Tested: {tested}\n" in run.stdout
