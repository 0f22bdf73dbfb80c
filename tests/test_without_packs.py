"""The core works where no pack is installed, and says how to install the one that a command is in."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pace.packs import EXTRAS, GROUP
from pace.version import __version__
from tests.api.process import ServiceProcess
from tests.api.profiles import layered_profile

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = [tomllib.loads(path.read_text()) for path in sorted(ROOT.glob("packs/*/pyproject.toml"))]
NAMES = [project["project"]["name"].replace("-", "_") for project in PROJECTS]

# Read by Python when it starts: no pack is found, and importing one is an error.
HIDING = f"""
import importlib.metadata
import sys

found = importlib.metadata.entry_points
importlib.metadata.entry_points = lambda **asked: () if asked.get("group") == "{GROUP}" else found(**asked)
sys.modules.update(dict.fromkeys({NAMES!r}))
"""


@pytest.fixture(scope="module")
def without_packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which Python finds no pack."""
    folder = tmp_path_factory.mktemp("hiding")
    (folder / "sitecustomize.py").write_text(HIDING)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])}


def pace(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command."""
    command = [sys.executable, "-c", "from pace.cli import app; app()", *arguments]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_a_command_of_a_pack_says_how_to_install_it(without_packs: dict[str, str]) -> None:
    """In one line; the help shows what there is."""
    helped = pace(without_packs, "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert " optimize " in helped.stdout
    for command, extra in EXTRAS.items():
        assert f" {command} " not in helped.stdout
        refused = pace(without_packs, command, "plan", "one.json", "other.json")
        install = f'pip install "pace-scheduler[{extra}]"'
        said = f"pace: pace {command} is in a pack that is not installed: {install}\n"
        assert (refused.returncode, refused.stdout, refused.stderr) == (3, "", said)


def test_an_exchange_of_a_pack_says_how_to_install_it(without_packs: dict[str, str], tmp_path: Path) -> None:
    """Where an option names it, and where the profile was measured with it."""
    pushed = layered_profile(4) | {
        "allreduce": {"kind": "push-pull", "servers": 1, "worker_bytes_per_s": 1e9}
    }
    for name, profile in (("plain", layered_profile(4)), ("pushed", pushed)):
        (tmp_path / name).write_text(json.dumps(profile))
    said = 'pace: --exchange "servers" is in a pack that is not installed: run: pip install "pace-scheduler['
    for asked in (("plain", "--exchange", "servers"), ("pushed",)):
        for command in ("optimize", "simulate"):
            refused = pace(without_packs, command, str(tmp_path / asked[0]), *asked[1:])
            assert (refused.returncode, refused.stdout) == (2, "")
            assert refused.stderr.startswith(said)
    assert pace(without_packs, "simulate", str(tmp_path / "plain")).returncode == 0
    assert pace(without_packs, "what-if", str(tmp_path / "pushed"), "--policy", "fifo").returncode == 0


@pytest.mark.slow
def test_the_service_answers_without_packs(without_packs: dict[str, str], tmp_path: Path) -> None:
    """Schedules, the page and OpenAPI; what a pack would answer is not found."""
    with ServiceProcess(tmp_path, command=[sys.executable], environment=without_packs) as service:
        assert service.post_schedule(layered_profile(4)).status_code == 201
        paths = service.http.get("/openapi.json").json()["paths"]
        assert "/v1/schedules" in paths
        assert not {"/v1/fabric-runs", "/v1/sync-plans", "/v1/transfer-plans"} & paths.keys()
        assert (
            service.http.get("/web/packs.js").text == "export const PACKS = [];\nexport const ANSWERS = {};\n"
        )
        assert service.http.post("/v1/transfer-plans", json={}).status_code == 404
        cost = {"kind": "push-pull", "servers": 1, "worker_bytes_per_s": 1e9}
        refused = service.post_schedule(layered_profile(4) | {"allreduce": cost})
        assert refused.status_code == 422
        assert 'pip install "pace-scheduler[servers]"' in refused.json()["detail"]


def test_a_worker_without_the_pack_of_a_task_says_so(without_packs: dict[str, str]) -> None:
    """A Dask worker may be installed in another way than the service."""
    code = (
        "from pace.api.questions.all_kinds import answer_question; answer_question('fabric-run', b'', '[]')"
    )
    command = [sys.executable, "-c", code]
    asked = subprocess.run(
        command, env=os.environ | without_packs, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert 'ExecutorMismatch: a Dask worker lacks the pack for "fabric-run" tasks' in asked.stderr


def test_packs_are_released_with_the_core() -> None:
    """One version for all, in packs and in the extras that install them."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= extras.keys()
    for project in (each["project"] for each in PROJECTS):
        assert project["version"] == __version__
        assert extras[project["name"].removeprefix("pace-")] == [f"{project['name']}=={__version__}"]
        ours = [each for each in project["dependencies"] if each.startswith("pace-")]
        assert ours
        assert all(each.endswith(f"=={__version__}") for each in ours)
