"""What the deployment files claim: they are valid, and the service runs unprivileged and read-only.

Of the image, as far as it can be told without building it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pace.api.settings import Settings
from tests.api.compiled import contents, copy_compiled
from tests.api.process import ServiceProcess, compile_all
from tests.api.profiles import layered_profile

pytestmark = pytest.mark.timeout(900)  # a wheel, and an environment for it

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES_VERSIONS = ("1.29", kubernetes_validate.latest_version())

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPILES = re.search(r"^RUN NUMBA_CACHE_DIR=(\S+) python -c (.+)$", DOCKERFILE, re.MULTILINE)
PROCESSOR = dict(re.findall(r"(NUMBA_CPU_\w+)=(\w*)", DOCKERFILE))
COMPILER_TIMEOUT_S = 900

# In a mount namespace of its own: everything read-only but one place in memory and the data folder; no root.
# Reading is all that the one capability allows, where the interpreter lies in a home folder that is closed.
CONFINED = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=1777 pace /mnt
mkdir /mnt/data
cp -r "$COMPILED" /mnt/numba
chown -R 10001:10001 /mnt/numba
mount --bind "$DATA" /mnt/data
mount -o remount,bind,ro /
cd /mnt/data
if touch "$TREE/written" 2>/dev/null; then echo "the tree can be written" >&2; exit 9; fi
exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set -all,+dac_read_search \
    --inh-caps -all,+dac_read_search --ambient-caps -all,+dac_read_search "$@"
"""


def _run(program: str, **environment: str) -> str:
    command = [sys.executable, "-c", program]
    ran = subprocess.run(
        command,
        env=os.environ | environment,
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=COMPILER_TIMEOUT_S,
    )
    return ran.stdout


def _documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text()))


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_the_manifest_is_valid(version: str) -> None:
    """Every document follows Kubernetes' own schema, with no field that it does not know."""
    documents = _documents()
    assert [document["kind"] for document in documents] == ["Deployment", "Service", "PodDisruptionBudget"]
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_containers_are_confined_and_their_settings_exist() -> None:
    """Both files: no root, a read-only file system, no settings that the service does not have."""
    pod = _documents()[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    ours = compose["services"]["pace"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert (ours["read_only"], ours["cap_drop"]) == (True, ["ALL"])
    known = {f"PACE_{name.upper()}" for name in Settings.model_fields}
    given = {variable["name"] for variable in container["env"]} | set(ours["environment"])
    assert {name for name in given if name.startswith("PACE_")} <= known
    user = next(line for line in DOCKERFILE.splitlines() if line.startswith("USER"))
    assert user == f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"


def test_large_bodies_wait_on_disk_and_pods_leave_the_service_before_they_stop() -> None:
    """Memory would be shared with compiled functions and charts; a pod must not refuse connections."""
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["pace"]
    folder = compose["environment"]["PACE_SPOOL_FOLDER"]
    assert [each for each in compose["volumes"] if each.endswith(f":{folder}")]
    assert not [each for each in compose["tmpfs"] if folder.startswith(each)]
    pod = _documents()[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (folder,) = (each["value"] for each in container["env"] if each["name"] == "PACE_SPOOL_FOLDER")
    (name,) = (each["name"] for each in container["volumeMounts"] if each["mountPath"] == folder)
    (volume,) = (each for each in pod["volumes"] if each["name"] == name)
    assert "medium" not in volume["emptyDir"]
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause_s + Settings().drain_s


def test_the_alert_of_a_long_queue_comes_before_one_tenant_is_refused() -> None:
    """A service without keys has one tenant, whose queue never gets longer than its own limit."""
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
    (rule,) = (rule for group in groups for rule in group["rules"] if rule["alert"] == "PaceLongQueue")
    assert int(rule["expr"].rpartition(" ")[2]) < Settings().max_queued_per_tenant


CHART = ROOT / "deploy" / "helm" / "pace"


def test_the_chart_does_not_publish_the_names_of_tenants() -> None:
    """``/metrics`` needs no key and is on the port of the API."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert "PACE_METRICS_TENANTS" not in values["settings"]


def test_every_value_of_the_chart_is_in_its_schema_and_used() -> None:
    """A value without an entry in the schema is refused; one that no template uses has no effect."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert values.keys() == schema.keys() - {"global"}
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name, value in values.items():
        entries = schema[name].get("properties", {})
        assert entries.keys() <= (value.keys() if isinstance(value, dict) else set())
        for path in (f"{name}.{entry}" for entry in entries) if entries else (name,):
            assert f".Values.{path}" in templates


# Of every compiled function, for which types there is code in this process, compiled here or read.
READY = """
import gc
from numba.core.registry import CPUDispatcher

def ready():
    found = [each for each in gc.get_objects() if isinstance(each, CPUDispatcher)]
    return {f"{each.__module__}.{each.__qualname__}{types}" for each in found for types in each.overloads}

before = ready()
import tests.MODULE.every_question as every_question
every_question.ask_everything()
print(len(before), *sorted(ready() - before), sep="\\n")
"""


def compiled_when_asked(module: str) -> list[str]:
    """Return what ``every_question`` of a module of tests compiles after what the image's build runs."""
    assert COMPILES is not None
    (program,) = shlex.split(COMPILES[2])
    number, *more = _run(f"{program}{READY.replace('MODULE', module)}").splitlines()
    assert int(number) > 20
    return more


@pytest.mark.slow
def test_the_image_is_built_with_all_that_a_worker_compiles() -> None:
    """After what the build runs, a process has all that it needs, whatever it is asked."""
    assert COMPILES is not None
    # The entry point gives every container a copy of that folder.
    assert f"cp -a {COMPILES[1]} " in DOCKERFILE
    assert compiled_when_asked("api") == []


TWICE = """
from pace.solver.compiled import compiled

@compiled
def twice(number):
    return 2 * number
"""


def test_the_image_compiles_for_any_processor_of_its_kind(tmp_path: Path) -> None:
    """A process with the settings of the image reads what the build has compiled, and adds nothing."""
    assert PROCESSOR == {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    (tmp_path / "doubling.py").write_text(TWICE)
    cache = tmp_path / "compiled"
    settings = PROCESSOR | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    asked = "from doubling import twice; print(twice(2), sum(twice.stats.cache_hits.values()))"
    assert [_run(asked, **settings) for _ in range(2)] == ["4 0\n", "4 1\n"]
    (index,) = (content for name, content in contents(cache).items() if name.endswith(".nbi"))
    assert b"generic" in index


@pytest.mark.slow
def test_the_service_runs_unprivileged_on_a_read_only_system(tmp_path: Path) -> None:
    """As the container does: user 10001, nothing to write to but a place in memory and the data folder.

    It starts with a copy of what was compiled before, here for this processor, and adds nothing to it.
    """
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("confining a process takes root, unshare and setpriv")
    own_mounts = ["unshare", "--mount", "mount", "--make-rprivate", "/"]
    if subprocess.run(own_mounts, capture_output=True).returncode:
        pytest.skip("confining a process takes mounts of its own, which an unprivileged container has not")
    data, compiled = tmp_path / "data", tmp_path / "compiled"
    compile_all()
    copy_compiled(compiled)
    data.mkdir()
    os.chown(data, 10001, 10001)
    environment = {
        "COMPILED": str(compiled),
        "DATA": str(data),
        "TREE": str(ROOT),
        "PYTHONPATH": str(ROOT),
        "HOME": "/nonexistent",
        "TMPDIR": "/mnt",
        "NUMBA_CACHE_DIR": "/mnt/numba",
        "MPLCONFIGDIR": "/mnt/matplotlib",
    }
    command = ["unshare", "--mount", "bash", "-c", CONFINED, "bash", sys.executable]
    service = ServiceProcess(
        tmp_path, "sqlite:////mnt/data/pace.db", command=command, environment=environment
    )
    with service:
        assert service.post_schedule(layered_profile(5)).status_code == 201
        path = service.post_schedule(layered_profile(6)).headers["location"]
        assert service.http.get(f"{path}/chart").status_code == 200
        status = Path(f"/proc/{service.pid}/status").read_text()
        assert "Uid:\t10001\t10001\t10001\t10001" in status
        assert "NoNewPrivs:\t1" in status
        assert contents(Path(f"/proc/{service.pid}/root/mnt/numba")) == contents(compiled)
    assert (data / "pace.db").exists()
