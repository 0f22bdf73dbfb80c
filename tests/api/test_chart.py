"""The Helm chart: Helm renders it, and it is valid for Kubernetes and says what the chart promises."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from pace.api.settings import Settings, load_settings

HELM = Path(sys.executable).with_name("helm")
pytestmark = pytest.mark.skipif(not HELM.exists(), reason="Helm is installed on x86-64 only")
CHART = Path(__file__).parents[2] / "deploy" / "helm" / "pace"
SCALING = {
    "enabled": True,
    "minReplicas": 2,
    "maxReplicas": 9,
    "tasksPerReplica": "4",
    "metric": "pace_tasks_queued",
}
TENANTS = {"vision": {"weight": 4, "max_running": 2}}


def _helm(*command: str, **changes: Any) -> "subprocess.CompletedProcess[str]":
    """Run Helm on the chart with changed values."""
    return subprocess.run(
        [HELM, *command, CHART, "--values", "-"], input=json.dumps(changes), capture_output=True, text=True
    )


def _rendered(**changes: Any) -> list[dict[str, Any]]:
    made = _helm("template", "ours", **changes)
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))


def _by_kind(**changes: Any) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in _rendered(**changes)}


@pytest.mark.parametrize("version", ["1.29", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("changes", [{}, {"autoscaling": SCALING, "tenants": TENANTS}])
def test_rendered_documents_are_valid(version: str, changes: dict[str, Any]) -> None:
    """Every document follows Kubernetes' own schema, with no field that it does not know."""
    documents = _rendered(**changes)
    kinds = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    assert {document["kind"] for document in documents} == kinds | (
        {"HorizontalPodAutoscaler", "ConfigMap"} if changes else set()
    )
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_helm_finds_nothing_to_mend() -> None:
    """With the default values and with others."""
    for changes in ({}, {"autoscaling": SCALING, "tenants": TENANTS}):
        found = _helm("lint", "--strict", **changes)
        assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        {"replica": 1},
        {"settings": {"PACE_AUTH": True}},
        {"settings": {"AUTH": "required"}},
        {"settings": {"PACE_DRAIN_S": "30s"}},
        {"settings": {"PACE_SPOOL_FOLDER": "/var"}},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    """By the chart's schema, which names them: misspelled ones, and what the chart itself sets."""
    refused = _helm("template", "ours", **wrong)
    assert refused.returncode == 1
    assert "values don't meet the specifications of the schema" in refused.stderr


def test_pods_end_by_force_only_after_their_drain() -> None:
    """Also if somebody chooses a longer one."""
    for drain_s in (30, 300, 60.5):
        deployment = _by_kind(settings={"PACE_DRAIN_S": str(drain_s)})["Deployment"]
        pod = deployment["spec"]["template"]["spec"]
        pause_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] > pause_s + drain_s


def test_the_port_is_the_one_that_is_set() -> None:
    """Probes and the Service use the port by its name."""
    template = _by_kind(settings={"PACE_PORT": "9000"})["Deployment"]["spec"]["template"]
    assert template["spec"]["containers"][0]["ports"] == [{"name": "http", "containerPort": 9000}]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "9000"


@pytest.mark.parametrize(
    ("replicas", "asked", "rendered"), [(1, 1, None), (2, 1, 1), (2, 2, 1), (5, 2, 2), (3, 0, 0)]
)
def test_a_node_can_always_be_drained(replicas: int, asked: int, rendered: int | None) -> None:
    """A budget of all replicas would let no pod go."""
    kinds = _by_kind(replicas=replicas, disruption={"minAvailable": asked})
    budget = kinds.get("PodDisruptionBudget")
    assert (budget and budget["spec"]["minAvailable"]) == rendered


def test_pods_are_confined_and_their_settings_exist(tmp_path: Path) -> None:
    """No root, a read-only file system, settings and tenants as the service reads them."""
    documents = _by_kind(tenants=TENANTS)
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    given = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    assert {name for name in given if name.startswith("PACE_")} <= {
        f"PACE_{name.upper()}" for name in Settings.model_fields
    }
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {given["PACE_SPOOL_FOLDER"], str(Path(given["PACE_TENANTS_FILE"]).parent)} <= mounts
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    path = tmp_path / "tenants.json"
    path.write_text(documents["ConfigMap"]["data"]["tenants.json"])
    assert load_settings(tenants_file=str(path)).tenants.weight("vision") == 4


def test_the_parts_belong_together() -> None:
    """Selectors choose the pods, and the autoscaler the deployment, whose size it alone decides."""
    documents = _by_kind(autoscaling=SCALING)
    deployment = documents["Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        documents["Service"]["spec"]["selector"],
        documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        documents["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels
    scaler = documents["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    assert _by_kind()["Deployment"]["spec"]["replicas"] == 2
    (metric,) = scaler["metrics"]
    adapter = yaml.safe_load((CHART.parents[1] / "prometheus" / "adapter.yaml").read_text())
    (rule,) = adapter["rules"]["external"]
    assert re.fullmatch(rule["name"]["matches"], metric["external"]["metric"]["name"])


def test_others_cannot_connect() -> None:
    """Only to the service's port, from the namespaces that are named; out to names and the database."""
    policy = _by_kind()["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    (ingress,) = policy["ingress"]
    assert [port["port"] for port in ingress["ports"]] == ["http"]
    named = [
        peer["namespaceSelector"]["matchLabels"] for peer in ingress["from"] if "namespaceSelector" in peer
    ]
    assert [labels["kubernetes.io/metadata.name"] for labels in named] == ["ingress", "monitoring"]
    ports = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert ports == {53, 5432, 443}
    assert "NetworkPolicy" not in _by_kind(networkPolicy={"enabled": False})
