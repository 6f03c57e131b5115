"""The image and the compose file, read closely: what they name must exist, also where no engine can run them."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml  # type: ignore[import-untyped]
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline.core.errors import PermissionDenied
from faultline.store import verbs
from faultline.store.database import run_on
from faultline.store.install import migrate
from tests.cli.commands import faultline
from tests.driver import Driver
from tests.words import check_words

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest), with continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def all_of(wanted: str) -> list[str]:
    return [rest for word, rest in instructions() if word == wanted]


def in_build_context(path: str) -> bool:
    """As .dockerignore says: everything is left out but what it names."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    return f"!{Path(path).parts[0]}" in lines and (ROOT / path).exists()


# The image


def test_everything_that_is_copied_is_in_the_build_context() -> None:
    copied = [source for rest in all_of("COPY") if "--from" not in rest for source in rest.split()[:-1]]

    assert copied
    assert [source for source in copied if not in_build_context(source)] == []


def test_what_the_package_is_built_from_is_copied() -> None:
    """The build reads these: without one of them it fails, or makes another package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = {source for rest in all_of("COPY") for source in rest.split()[:-1]}

    assert {"pyproject.toml", "src", "hatch_build.py", "README.md", *project["license-files"]} <= copied


def test_the_image_installs_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (installed,) = [rest for rest in all_of("RUN") if "pip install" in rest]
    named = re.findall(r"\.\[([\w,]+)\]", installed)

    assert named
    assert set(named[0].split(",")) <= project["optional-dependencies"].keys()


def test_the_image_does_not_run_as_root() -> None:
    last = all_of("USER")[-1]

    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last)


def test_the_image_is_small_by_leaving_what_built_it_behind() -> None:
    assert len(all_of("FROM")) == 2
    assert all(not rest.startswith("src") for rest in all_of("COPY")[3:])


def test_the_images_command_exists_and_its_ports_agree() -> None:
    (entrypoint,), (command,) = all_of("ENTRYPOINT"), all_of("CMD")
    words = [*json.loads(entrypoint), *json.loads(command)]
    check_words(words[1:])

    port = words[words.index("--port") + 1]
    (health,) = all_of("HEALTHCHECK")
    assert all_of("EXPOSE") == [port]
    assert f"http://127.0.0.1:{port}/health" in health


# The compose file


def words_of(service: dict[str, Any]) -> list[str]:
    command = service["command"]
    return list(command if isinstance(command, list) else shlex.split(command))


@pytest.mark.parametrize("name", [name for name, service in OURS.items() if "entrypoint" not in service])
def test_every_command_exists(name: str) -> None:
    check_words(words_of(OURS[name]))


@pytest.mark.parametrize("name", list(OURS))
def test_every_module_that_is_run_is_in_the_image(name: str) -> None:
    words = [*OURS[name].get("entrypoint", []), *words_of(OURS[name])]
    modules = [word.partition(":")[0] for word in words if re.fullmatch(r"faultline(\.\w+)+(:\w+)?", word)]
    for module in modules:
        assert (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").exists()


@pytest.mark.parametrize("name", list(OURS))
def test_ours_run_with_no_rights_that_they_do_not_need(name: str) -> None:
    service = OURS[name]

    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]  # noqa: S108 - the container's own
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "volumes" not in service


def healthcheck(service: dict[str, Any]) -> list[str] | None:
    """The command that says whether a service is well. Ours have the image's where they have none."""
    check = service.get("healthcheck")
    if check is None:
        return ["image"] if "build" in service else None
    return None if check.get("disable") else list(check["test"])


@pytest.mark.parametrize("name", list(SERVICES))
def test_services_wait_for_what_can_happen(name: str) -> None:
    needed = SERVICES[name].get("depends_on", {})
    if isinstance(needed, list):
        needed = {other: {"condition": "service_started"} for other in needed}
    for other, how in needed.items():
        assert other in SERVICES
        if how["condition"] == "service_healthy":
            assert healthcheck(SERVICES[other]) is not None
        if how["condition"] == "service_completed_successfully":
            assert SERVICES[other]["restart"] == "no"


def test_health_checks_of_ours_are_commands_that_exist() -> None:
    for service in OURS.values():
        check = healthcheck(service)
        if check and check[:2] == ["CMD", "faultline"]:
            check_words([re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in check[2:]])


def test_only_the_api_has_the_images_health_check() -> None:
    """It asks a port that nobody else listens on."""
    assert [name for name, service in OURS.items() if healthcheck(service) == ["image"]] == ["api"]


def test_a_worker_is_given_the_time_that_it_takes_to_finish() -> None:
    for service in OURS.values():
        words = words_of(service)
        if words[:1] == ["worker"]:
            assert int(service["stop_grace_period"].removesuffix("s")) > float(words[words.index("--grace") + 1])


def test_ports_are_published_to_this_machine_alone_and_lead_to_where_somebody_listens() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert "postgres" not in published
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    words = words_of(SERVICES["api"])
    assert published["api"][0].endswith(f":{words[words.index('--port') + 1]}")


def test_what_is_mounted_and_joined_exists() -> None:
    for service in SERVICES.values():
        assert set(service["networks"]) <= COMPOSE["networks"].keys()
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


def test_nothing_secret_is_baked_in() -> None:
    for file in ("Dockerfile", "compose.yaml", "deploy/postgres/logins.sql"):
        text = (ROOT / file).read_text()
        assert not re.search(r"(?i)(password|secret|token)\w*\s*[:=]\s*['\"]?[\w$]", text), file
        assert not re.search(r"://\w+:[^@\s]+@", text), f"{file} holds a password in an address"
        assert not re.search(r"\bfl_\w+", text), f"{file} holds an API key"


def test_images_have_a_version_and_no_registry() -> None:
    images = [service["image"] for service in SERVICES.values() if "build" not in service]
    bases = [rest.split()[0] for rest in all_of("FROM")]

    for image in [*images, *bases]:
        name, _, tag = image.rpartition(":")
        assert re.search(r"\d", tag), f"{image} may be another one tomorrow"
        assert "." not in name.partition("/")[0], f"{image} names a registry"


def test_prometheus_asks_where_somebody_answers() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    asked = {
        target for job in config["scrape_configs"] for part in job.get("static_configs", []) for target in part["targets"]
    }
    for job in config["scrape_configs"]:
        asked |= {target for part in job.get("static_configs", []) for target in part["targets"]}
        asked |= {f"{name}:{part['port']}" for part in job.get("dns_sd_configs", []) for name in part["names"]}

    answers = set()
    for name in ("api", "worker"):
        words = words_of(SERVICES[name])
        answers.add(f"{name}:{words[words.index('--metrics-port') + 1]}")
    assert asked == answers
    for file in config["rule_files"]:
        assert (ROOT / "deploy/prometheus" / file).exists()


def test_every_alert_is_told_what_to_do_about() -> None:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}

    assert (
        set(re.findall(r"^\| `(Faultline\w+)` \|", (ROOT / "docs/how-to/monitoring.md").read_text(), re.MULTILINE)) == alerts
    )


def test_grafana_is_given_a_source_and_the_dashboard() -> None:
    provisioning = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards/faultline.yml").read_text())["providers"]

    service, _, port = source["url"].removeprefix("http://").partition(":")
    assert any(published.endswith(f":{port}") for published in SERVICES[service]["ports"])
    mounted = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/faultline.json" in mounted


def test_the_logins_can_do_their_work_and_no_more(empty_dsn: str) -> None:
    """The file itself, on a real server: the owner migrates, the worker works, the API's login is seen to by the doctor."""
    database = str(conninfo_to_dict(empty_dsn)["dbname"])
    text = re.sub(r"(?m)^--.*$", "", (ROOT / "deploy/postgres/logins.sql").read_text())
    text = text.replace("alter database faultline ", f'alter database "{database}" ')
    logins = re.findall(r"create role (\w+) login", text)
    with psycopg.connect(empty_dsn, autocommit=True) as superuser:
        try:
            for statement in filter(str.strip, text.split(";")):
                try:
                    superuser.execute(statement.encode())
                except psycopg.errors.DuplicateObject:  # the roles belong to the whole cluster
                    assert "nologin" in statement
            with psycopg.connect(make_conninfo(empty_dsn, user="faultline_owner"), autocommit=True) as owner:
                migrate.migrate(owner)
            with psycopg.connect(make_conninfo(empty_dsn, user="shop_worker"), autocommit=True) as connection:
                worker = Driver(connection)
                worker.enqueue()
                worker.complete(worker.claim_one())
                with pytest.raises(PermissionDenied):
                    run_on(connection, verbs.recover())
            looked = faultline("doctor", "--json", "--dsn", make_conninfo(empty_dsn, user="shop_api"))
            findings = json.loads(looked.stdout)["findings"]
            # How the journal is numbered is for its owner to see.
            assert {found["check"] for found in findings if "not seen" in found["found"]} <= {"numbering"}
        finally:
            superuser.execute(f'alter database "{database}" owner to current_user'.encode())
            for login in logins:
                superuser.execute(f"drop owned by {login} cascade".encode())
                superuser.execute(f"drop role {login}".encode())
