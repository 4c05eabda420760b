from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.deployment import (
    DEPLOY,
    LONGEST_STOP,
    ROOT,
    assert_settings_are_ours,
    check,
    document,
    tool,
)

FOLDER = DEPLOY / "kubernetes"
LABELS = {"app.kubernetes.io/name": "moonfold-worker"}
OBJECTS = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
EXTENSIONS = {"scaledobject.yaml", "servicemonitor.yaml", "prometheusrule.yaml"}


def read(name: str) -> Any:
    return document(FOLDER / f"{name}.yaml")


@pytest.fixture
def pod() -> Any:
    return read("deployment")["spec"]["template"]["spec"]


@pytest.fixture
def container(pod: Any) -> Any:
    [only] = pod["containers"]
    return only


@pytest.mark.parametrize("name", sorted(set(OBJECTS) - EXTENSIONS))
def test_an_object_is_as_kubernetes_describes_it(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="it is not installed")
    validate.validate(document(FOLDER / name), validate.latest_version(), strict=True)


def test_kustomize_puts_every_object_together_but_the_example() -> None:
    said = check(tool("kubectl"), "kustomize", FOLDER)
    assert said.count("\nkind: ") == len(OBJECTS) - 1
    assert "image: moonfold-handoff:" in said
    assert "kind: Secret" not in said


def test_every_file_is_listed_but_the_example() -> None:
    kustomization = read("kustomization")
    assert sorted(kustomization["resources"]) == [n for n in OBJECTS if "example" not in n]
    [image] = kustomization["images"]
    version = f'version = "{image["newTag"]}"'
    assert version in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_extensions_are_those_of_keda_and_the_prometheus_operator() -> None:
    kinds = {(read(Path(n).stem)["apiVersion"], read(Path(n).stem)["kind"]) for n in EXTENSIONS}
    assert kinds == {
        ("keda.sh/v1alpha1", "ScaledObject"),
        ("monitoring.coreos.com/v1", "ServiceMonitor"),
        ("monitoring.coreos.com/v1", "PrometheusRule"),
    }


def test_everything_is_in_one_namespace_and_means_the_same_pods() -> None:
    for name in set(OBJECTS) - {"namespace.yaml"}:
        assert read(name.removesuffix(".yaml"))["metadata"]["namespace"] == "moonfold"
    deployment = read("deployment")["spec"]
    assert deployment["selector"]["matchLabels"] == LABELS
    assert deployment["template"]["metadata"]["labels"] == LABELS
    assert read("service")["spec"]["selector"] == LABELS
    assert read("service")["metadata"]["labels"] == LABELS
    assert read("poddisruptionbudget")["spec"]["selector"]["matchLabels"] == LABELS
    assert read("networkpolicy")["spec"]["podSelector"]["matchLabels"] == LABELS
    assert read("servicemonitor")["spec"]["selector"]["matchLabels"] == LABELS
    assert read("scaledobject")["spec"]["scaleTargetRef"] == {"name": "moonfold-worker"}
    assert read("deployment")["metadata"]["name"] == "moonfold-worker"


def test_a_pod_can_do_as_little_as_it_needs(pod: Any, container: Any) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert "USER 10001:10001" in (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_probes_ask_for_what_a_worker_serves_on_the_port_it_serves(container: Any) -> None:
    [port] = container["ports"]
    address = read("configmap")["data"]["MOONFOLD_METRICS_ADDRESS"]
    assert address == f"0.0.0.0:{port['containerPort']}"
    paths = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness")}
    assert set(map(str, paths.values())) == {str({"path": "/livez", "port": port["name"]})}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}
    [exposed] = read("service")["spec"]["ports"]
    assert (exposed["port"], exposed["targetPort"]) == (port["containerPort"], port["name"])
    [endpoint] = read("servicemonitor")["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (exposed["name"], "/metrics")
    [ingress] = read("networkpolicy")["spec"]["ingress"]
    assert ingress["ports"] == [{"port": port["containerPort"], "protocol": "TCP"}]


def test_a_pod_has_more_time_to_end_than_a_worker_takes(pod: Any) -> None:
    assert pod["terminationGracePeriodSeconds"] > LONGEST_STOP


def test_settings_exist_and_secrets_are_no_settings(pod: Any, container: Any) -> None:
    settings = read("configmap")["data"]
    assert_settings_are_ours(settings)
    [source] = container["envFrom"]
    assert source["configMapRef"]["name"] == read("configmap")["metadata"]["name"]
    [volume] = pod["volumes"]
    secret = read("secret.example")
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    [mount] = container["volumeMounts"]
    [name] = secret["stringData"]
    assert settings["MOONFOLD_REDIS_URL_FILE"] == f"{mount['mountPath']}/{name}"
    assert "<password>" in secret["stringData"][name]


def test_workers_are_spread_and_not_all_ended_at_once(pod: Any) -> None:
    keys = [constraint["topologyKey"] for constraint in pod["topologySpreadConstraints"]]
    assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    assert read("poddisruptionbudget")["spec"]["maxUnavailable"] == 1
    assert read("scaledobject")["spec"]["minReplicaCount"] >= 2
    update = read("deployment")["spec"]["strategy"]["rollingUpdate"]
    assert update == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_worker_reaches_its_server_and_names_and_nothing_else() -> None:
    policy = read("networkpolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ports = [sorted({port["port"] for port in rule["ports"]}) for rule in policy["egress"]]
    assert ports == [[6379], [53]]
    assert all(rule["to"] for rule in policy["egress"])


def test_the_operators_alerts_are_those_of_the_rules_file() -> None:
    assert read("prometheusrule")["spec"] == document(DEPLOY / "prometheus" / "rules.yml")


def test_the_job_is_called_as_the_alerts_call_it() -> None:
    assert read("servicemonitor")["spec"]["jobLabel"] == "app.kubernetes.io/name"
    [job] = document(DEPLOY / "prometheus" / "prometheus.yml")["scrape_configs"]
    assert job["job_name"] == LABELS["app.kubernetes.io/name"]
