"""The description at /openapi.json is complete: who reads nothing else finds no answer that it does not foresee."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from faultline.store import verbs
from faultline.store.database import run_on
from faultline.store.verbs import access
from tests.flow.scenes import asked
from tests.web.conftest import QUICK, refused, running

if TYPE_CHECKING:
    from tests.driver import Driver
    from tests.web.conftest import Api


HOOKS = Path(__file__).with_name("schemathesis_hooks.py")


@pytest.mark.long
def test_schemathesis_finds_nothing(dsn: str, db: Driver, tmp_path: Path) -> None:
    """Every path and every check. A 503 of /ready would be what it is for, so there is a worker that stays alive."""
    check(dsn, db, tmp_path)


@pytest.mark.long
def test_schemathesis_finds_nothing_wrong_with_a_schedule_that_exists(dsn: str, db: Driver, tmp_path: Path) -> None:
    """With the name of a schedule that exists, requests get as far as the verbs."""
    (tmp_path / "schemathesis.toml").write_text('[parameters]\n"path.name" = "report"\n')

    check(dsn, db, tmp_path, "--include-path-regex", "schedules", examples=20)

    assert db.value("select count(*) from faultline.journal where event = 'setting_changed'")


@pytest.mark.long
def test_schemathesis_finds_nothing_wrong_with_the_flow_of_a_job_that_waits(dsn: str, db: Driver, tmp_path: Path) -> None:
    """With the id of a job that exists, requests get as far as the verbs."""
    job_id = asked(db)
    (tmp_path / "schemathesis.toml").write_text(f'[parameters]\n"path.job_id" = "{job_id}"\n')

    check(dsn, db, tmp_path, "--include-path-regex", "signals|stream|fork|waiting|/flow", examples=20)

    assert db.value("select count(*) from faultline.signals where job_id = %s", job_id)
    assert db.value("select count(*) from faultline.journal where event = 'forked' and job_id = %s", job_id)


def check(dsn: str, db: Driver, folder: Path, *more: str, examples: int = 8) -> None:
    key_id, key = access.new_key(random.SystemRandom())
    run_on(db.connection, access.add(key_id, access.digest_of(key) or b"", name="test", scopes=["admin"]))
    db.run(verbs.heartbeat("w1", host="h", pid=1, version="1", queues=["a"], sleeping=[], watched=False))
    db.connection.execute("update faultline.workers set heartbeat_at = now() + interval '1 hour'")

    # The key is asked about once: to look it up for each of a thousand requests is what test_access does.
    with running(dsn, replace(QUICK, stream_seconds=0.05, key_seconds=60.0)) as address:
        ran = subprocess.run(
            [
                Path(sys.executable).with_name("schemathesis"),
                "run",
                f"{address}/openapi.json",
                "--header",
                f"Authorization: Bearer {key}",
                "--max-examples",
                str(examples),
                "--seed",
                "1",
                "--no-color",
                *more,
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
            cwd=folder,
            env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(folder), "SCHEMATHESIS_HOOKS": str(HOOKS)},
        )

    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/schedules/report/pause"),
        ("GET", "/schedules/report/pause"),
        ("DELETE", "/schedules/a/b/ticks"),
        ("PUT", "/schedules/report/backfill"),
        ("POST", "/schedules/report"),
        ("POST", "/queues/mail/limits"),
        ("POST", "/queues/mail/limits/tenant-7"),
        ("PUT", "/queues/mail/groups"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_not_allowed(api: Api, method: str, path: str) -> None:
    answer = api.http.request(method, f"/api/v1{path}", json={})

    refused(answer, 405, "MethodNotAllowed")
    assert method not in answer.headers["allow"].split(", ")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/schedules/report", {"task": "t"}),
        ("PUT", "/schedules/report", {"task": "t", "every": 60, "cron": "0 9 * * *"}),
        ("PUT", "/schedules/report", {"task": "t", "every": 60, "tz": "UTC"}),
        ("PUT", "/schedules/report", {"task": "t", "every": 60, "group": "*"}),
        ("PUT", "/schedules/report", {"task": "t", "every": 60, "expires_at": "2090-01-01T00:00:00Z"}),
        ("PUT", "/queues/mail/limits", {}),
        ("PUT", "/queues/mail/limits", {"concurrency": 0}),
        ("PUT", "/queues/mail/limits", {"concurrency": 1_000_001}),
        ("PUT", "/queues/mail/limits", {"reason": "none"}),
        ("PUT", "/queues/mail/limits", {"burst": 5}),
        ("PUT", "/queues/mail/limits", {"weight": 2}),
        ("PUT", "/queues/mail/limits", {"rate": 0.0001}),
        ("PUT", "/queues/mail/limits/*", {"ordered": True, "concurrency": 2}),
        ("PUT", "/queues/mail/limits/*", {"weight": 1001}),
        ("POST", "/jobs", {"task": "t", "group": "*"}),
        ("POST", "/jobs", {"task": "t", "unique": {"at_most": 5}}),
        ("POST", "/jobs", {"task": "t", "unique": {"while": None}}),
        ("POST", "/jobs", {"task": "t", "unique": {"while": None, "period": 5, "debounce": 5}}),
        ("POST", "/jobs", {"task": "t", "unique": {"debounce": 5}, "delay_seconds": 5}),
        ("POST", "/jobs", {"task": "t", "expires_seconds": 5, "expires_at": "2090-01-01T00:00:00Z"}),
    ],
    ids=str,
)
def test_what_is_refused_does_not_fit_the_description(api: Api, method: str, path: str, body: dict[str, Any]) -> None:
    answer = api.http.request(method, f"/api/v1{path}", json=body)

    refused(answer, 422, answer.json()["code"])
    assert not described(api, method, path).is_valid(body)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/schedules/report", {"task": "t", "cron": "0 9 * * mon-fri", "tz": "Europe/Berlin", "every": None}),
        ("PUT", "/schedules/report", {"task": "t", "every": 60, "group": "**"}),
        ("PUT", "/schedules/report", {"task": "t", "at": "2090-01-01T00:00:00Z", "tz": None}),
        ("PUT", "/queues/mail/limits", {"rate": 0.001, "per": 31_536_000, "burst": 1}),
        ("PUT", "/queues/mail/limits", {"concurrency": None}),
        ("PUT", "/queues/mail/limits/*", {"ordered": True, "concurrency": 1}),
        ("PUT", "/queues/mail/limits/a/limits", {"ordered": False, "concurrency": 2}),
        ("POST", "/jobs", {"task": "t", "unique": {"while": None, "period": 5}}),
        ("POST", "/jobs", {"task": "t", "unique": {"debounce": 5, "at_most": 5}, "delay_seconds": None}),
    ],
    ids=str,
)
def test_what_fits_the_description_is_taken(api: Api, method: str, path: str, body: dict[str, Any]) -> None:
    answer = api.http.request(method, f"/api/v1{path}", json=body)

    assert answer.is_success, answer.text
    assert described(api, method, path).is_valid(body)


def test_a_group_whose_key_looks_like_a_path_has_its_own_limit(api: Api) -> None:
    api.http.put("/api/v1/queues/mail/limits/a/limits", json={"concurrency": 2})

    assert [one["group"] for one in api.get("/queues/mail/limits").json()["limits"]] == ["a/limits"]


def described(api: Api, method: str, path: str) -> jsonschema_rs.Validator:
    """The schema of the body, by the description of this path."""
    whole = api.get("/openapi.json").json()
    parts = {"/schedules/{name}": r"/schedules/\w+", "/queues/{queue_name}/limits": r"/queues/\w+/limits"}
    parts |= {"/queues/{queue_name}/limits/{group}": r"/queues/\w+/limits/.+", "/jobs": "/jobs"}
    (found,) = [f"/api/v1{name}" for name, pattern in parts.items() if re.fullmatch(pattern, path)]
    body = whole["paths"][found][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    return jsonschema_rs.validator_for({**body, "components": whole["components"]})
