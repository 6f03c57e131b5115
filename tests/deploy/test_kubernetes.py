"""The manifests for Kubernetes, without a cluster: by the published schemas, by what they say of each other, their query.

The schemas are those of Kubernetes itself. KEDA publishes its own with its operator: what these ask for is spelled out here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import kubernetes_validate  # type: ignore[import-untyped]
import psycopg
import pytest
import yaml  # type: ignore[import-untyped]
from psycopg.conninfo import make_conninfo

from tests.deploy.test_deploy import ROOT
from tests.words import check_words

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import NewLogin
    from tests.driver import Driver

    Work = Callable[[], int]

FOLDER = ROOT / "deploy/kubernetes"
PAGE = (ROOT / "docs/how-to/kubernetes.md").read_text()
METRICS = (ROOT / "docs/reference/metrics.md").read_text()
COMPONENTS = ("scale-by-query", "scale-by-metric")
#: The oldest version that the page promises, and the newest whose schemas are here.
VERSIONS = ("1.27", kubernetes_validate.latest_version())
#: The fields of KEDA's own objects, by the schemas that come with its operator (2.x, keda.sh/v1alpha1), and their types.
KEDA: dict[str, dict[str, type]] = {
    "ScaledObject": {
        "scaleTargetRef": dict, "triggers": list, "advanced": dict, "fallback": dict, "minReplicaCount": int,
        "maxReplicaCount": int, "idleReplicaCount": int, "pollingInterval": int, "cooldownPeriod": int,
        "initialCooldownPeriod": int,
    },
    "TriggerAuthentication": {"secretTargetRef": list, "env": list, "configMapTargetRef": list, "podIdentity": dict},
}  # fmt: skip
KEDA_TRIGGER = {"type", "name", "metadata", "metricType", "authenticationRef", "useCachedMetrics"}
#: Seconds after --grace in which a worker writes and releases: docs/how-to/deployment.md.
RELEASE_SECONDS = 20


def objects(*folders: str) -> list[dict[str, Any]]:
    files = [file for folder in folders for file in sorted((FOLDER / folder).glob("*.yaml"))]
    return [found for file in files if file.name != "kustomization.yaml" for found in yaml.safe_load_all(file.read_text())]


BASE = {(found["kind"], found["metadata"]["name"]): found for found in objects("base")}
PODS = {name: found["spec"]["template"] for (_, name), found in BASE.items() if "template" in found["spec"]}
WORKER = PODS["faultline-worker"]


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["spec"]["containers"]
    return dict(only)


def option(pod: dict[str, Any], name: str) -> str:
    (value,) = [word.partition("=")[2] for word in container(pod)["args"] if word.startswith(f"--{name}=")]
    return str(value)


def trigger_queries(folder: str) -> list[str]:
    (scaled,) = [found for found in objects(folder) if found["kind"] == "ScaledObject"]
    return [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", list(BASE), ids="/".join)
def test_every_object_fits_the_published_schema(name: tuple[str, str], version: str) -> None:
    kubernetes_validate.validate(BASE[name], version, strict=True)


def test_the_schemas_notice_a_field_that_does_not_exist() -> None:
    wrong = yaml.safe_load(yaml.safe_dump(BASE["Deployment", "faultline-worker"]))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 50

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("folder", ["base", *COMPONENTS])
def test_kustomizations_name_every_file_beside_them(folder: str) -> None:
    named = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())["resources"]

    assert {*named, "kustomization.yaml"} == {file.name for file in (FOLDER / folder).iterdir()}


@pytest.mark.parametrize("name", list(PODS))
def test_pods_have_no_rights_that_they_do_not_need(name: str) -> None:
    pod, inner = PODS[name]["spec"], container(PODS[name])["securityContext"]

    assert pod["automountServiceAccountToken"] is False
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, 10001)
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert inner["readOnlyRootFilesystem"] is True
    assert inner["allowPrivilegeEscalation"] is False
    assert inner["capabilities"] == {"drop": ["ALL"]}
    assert [mount["mountPath"] for mount in container(PODS[name])["volumeMounts"]] == ["/tmp"]  # noqa: S108 - the pod's own


@pytest.mark.parametrize("name", list(PODS))
def test_what_pods_run_exists(name: str) -> None:
    check_words([part for word in container(PODS[name])["args"] for part in word.split("=", 1)])


def test_probes_ask_where_somebody_answers() -> None:
    asked = {
        (name, probe): container(pod)[probe]["httpGet"]
        for name, pod in PODS.items()
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        if probe in container(pod)
    }

    assert {where: get["path"] for where, get in asked.items()} == {
        ("faultline-worker", "startupProbe"): "/live",
        ("faultline-worker", "livenessProbe"): "/live",
        ("faultline-worker", "readinessProbe"): "/ready",
        ("faultline-api", "livenessProbe"): "/health",
        ("faultline-api", "readinessProbe"): "/ready",
    }
    for name, listens in (("faultline-worker", "health-port"), ("faultline-api", "port")):
        ports = {port["name"]: port["containerPort"] for port in container(PODS[name])["ports"]}
        used = {ports[get["port"]] for (pod, _), get in asked.items() if pod == name}
        assert used == {int(option(PODS[name], listens))}
        assert ports["metrics"] == int(option(PODS[name], "metrics-port"))
    assert option(WORKER, "health-host") == option(PODS["faultline-api"], "host") == "0.0.0.0"  # noqa: S104 - the pod's own


def test_a_worker_is_given_its_grace_and_the_time_to_release() -> None:
    given = WORKER["spec"]["terminationGracePeriodSeconds"]

    assert given >= float(option(WORKER, "grace")) + RELEASE_SECONDS
    assert f"| `terminationGracePeriodSeconds` | {given} s |" in PAGE
    assert f"| `--grace` | {option(WORKER, 'grace')} s |" in PAGE


def test_no_worker_has_its_cpu_limited() -> None:
    assert all("cpu" not in container(pod)["resources"]["limits"] for pod in PODS.values())


def test_selectors_find_the_pods_they_mean() -> None:
    for (kind, name), found in BASE.items():
        if kind in {"Deployment", "PodDisruptionBudget"}:
            assert found["spec"]["selector"]["matchLabels"] == PODS[name]["metadata"]["labels"]
        if kind == "PodDisruptionBudget":
            assert found["spec"]["maxUnavailable"] == 1
    service = BASE["Service", "faultline-api"]["spec"]
    assert service["selector"] == PODS["faultline-api"]["metadata"]["labels"]
    assert {port["targetPort"] for port in service["ports"]} <= {
        port["name"] for port in container(PODS["faultline-api"])["ports"]
    }


def test_the_page_makes_the_secret_and_each_pod_has_a_login_of_its_own() -> None:
    used = [variable["valueFrom"]["secretKeyRef"] for pod in PODS.values() for variable in container(pod)["env"]]
    used += [found for part in objects(*COMPONENTS) for found in part["spec"].get("secretTargetRef", [])]

    assert {one["name"] for one in used} == {"faultline"}
    assert sorted(one["key"] for one in used) == sorted(re.findall(r"--from-literal=([\w-]+)=", PAGE))
    for file in FOLDER.rglob("*.yaml"):
        assert not re.search(r"://\w+:[^@\s]+@", file.read_text()), f"{file} holds a password"


@pytest.mark.parametrize("folder", COMPONENTS)
def test_keda_knows_every_field(folder: str) -> None:
    """A cluster drops what its schema does not have, in silence: a misspelt field would mean nothing."""
    for part in objects(folder):
        assert part.keys() == {"apiVersion", "kind", "metadata", "spec"}
        assert part["spec"].keys() <= KEDA[part["kind"]].keys()
        for field, value in part["spec"].items():
            assert isinstance(value, KEDA[part["kind"]][field]), field
        for trigger in part["spec"].get("triggers", []):
            assert {"type", "metadata"} <= trigger.keys() <= KEDA_TRIGGER
        for secret in part["spec"].get("secretTargetRef", []):
            assert secret.keys() == {"parameter", "name", "key"}


@pytest.mark.parametrize("folder", COMPONENTS)
def test_keda_is_told_what_it_asks_for(folder: str) -> None:
    found = {part["kind"]: part for part in objects(folder)}
    spec = found["ScaledObject"]["spec"]
    target = {"postgresql": "targetQueryValue", "prometheus": "threshold"}[spec["triggers"][0]["type"]]

    assert all(part["apiVersion"] == "keda.sh/v1alpha1" for part in found.values())
    assert ("Deployment", spec["scaleTargetRef"]["name"]) in BASE
    assert spec["minReplicaCount"] == 0 < spec["maxReplicaCount"]
    for trigger in spec["triggers"]:
        assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes text only"
        assert float(trigger["metadata"][target]) > 0
        if trigger["type"] == "postgresql":
            authentication = found["TriggerAuthentication"]
            assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
            assert [ref["parameter"] for ref in authentication["spec"]["secretTargetRef"]] == ["connection"]
        else:
            assert trigger["metadata"]["ignoreNullValues"] == "false", "a lost Prometheus must not end the workers"
    (patch,) = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())["patches"]
    assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]
    assert "replicas" in BASE[patch["target"]["kind"], patch["target"]["name"]]["spec"]


def test_the_metrics_that_are_asked_for_exist() -> None:
    for query in trigger_queries("scale-by-metric"):
        for name in re.findall(r"faultline_\w+", query):
            assert f"| `{name}` |" in METRICS
        assert query.count("(") == query.count(")")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("component", COMPONENTS)
def test_the_overlay_of_the_page_builds(component: str, tmp_path: Path) -> None:
    overlay = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert overlay is not None
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    (tmp_path / "kubernetes/shop").mkdir()
    text = overlay[1].replace("scale-by-query", component)
    (tmp_path / "kubernetes/shop/kustomization.yaml").write_text(text)

    words = ["kubectl", "kustomize", str(tmp_path / "kubernetes/shop")]
    built = subprocess.run(words, capture_output=True, text=True, check=True).stdout

    made = {(found["kind"], found["metadata"]["name"]): found for found in yaml.safe_load_all(built)}
    worker = made["Deployment", "faultline-worker"]
    assert "replicas" not in worker["spec"]
    assert container(worker["spec"]["template"])["args"][:2] == ["worker", "shop.jobs:app"]
    images = {container(found["spec"]["template"])["image"] for found in made.values() if "template" in found["spec"]}
    assert images == {"registry.example/shop:42"}
    assert ("ScaledObject", "faultline-worker") in made


# The query, on a real server, as the login that the page makes


@pytest.fixture
def work(dsn: str, new_login: NewLogin) -> Work:
    """How much there is to do, as KEDA asks."""
    (query,) = trigger_queries("scale-by-query")
    role = re.search(r"create role \w+ login password '…' (in role \w+);", PAGE)
    assert role is not None
    login = make_conninfo(dsn, user=new_login(role[1]))

    def ask() -> int:
        with psycopg.connect(login, autocommit=True) as connection:
            (row,) = connection.execute(query.encode()).fetchall()
            return int(row[0])

    assert ask() == 0
    return ask


def test_due_and_running_jobs_are_work_and_delayed_ones_are_not(queue: Driver, work: Work) -> None:
    queue.enqueue(queue="mail", priority=5)
    queue.enqueue(queue="mail", priority=-5)
    queue.enqueue(queue="orders")
    queue.enqueue(queue="orders", delay_seconds=3600)
    queue.enqueue(queue="of-somebody-else")
    assert work() == 3

    lease = queue.claim_one(queue="mail")
    assert work() == 3

    queue.complete(lease)
    assert work() == 2


def test_paused_queues_are_no_work_but_for_what_runs(queue: Driver, work: Work) -> None:
    for _ in range(2):
        queue.enqueue(queue="mail")
    queue.enqueue(queue="orders")
    queue.claim_one(queue="mail")

    queue.execute("select faultline.pause('mail')")

    assert work() == 2


def test_jobs_in_groups_are_work(queue: Driver, work: Work) -> None:
    queue.execute("select faultline.set_limit('mail', '*', '{\"concurrency\": 1}')")
    for _ in range(3):
        queue.enqueue(queue="mail", group="a")

    assert work() == 3


def test_a_backlog_is_counted_up_to_a_bound(queue: Driver, work: Work) -> None:
    queue.execute("select count(faultline.enqueue('t', '{}', queue => 'mail')) from generate_series(1, 1200)")

    assert work() == 1000


def test_what_only_workers_do_is_work(queue: Driver, work: Work) -> None:
    queue.execute("insert into faultline.nudges (job_id, kind) select gen_random_uuid(), 0 from generate_series(1, 5)")
    assert work() == 1

    queue.execute("insert into faultline.sweeps (job_id) values (gen_random_uuid())")
    assert work() == 2


def test_a_schedule_that_is_to_tick_is_work(queue: Driver, work: Work) -> None:
    queue.execute('select faultline.set_schedule(\'s\', \'{"every": 60, "job": {"task": "t"}}\')')
    assert work() == 1

    queue.execute("select faultline.pause_schedule('s')")
    assert work() == 0
