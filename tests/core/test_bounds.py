"""Python and SQL refuse the same values, and have the same defaults."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

import faultline.schema
from faultline.app.options import Options, TaskOptions
from faultline.core import bounds
from faultline.core.model import Submission
from faultline.core.settings import DatabaseSettings, settings_of

SCHEMA = Path(faultline.schema.__file__).parent


def text(name: str) -> str:
    (path,) = SCHEMA.rglob(f"{name}.sql")
    return path.read_text()


@pytest.mark.parametrize("name", ["enqueue", "parse_jobs"])
def test_sql_has_the_same_bounds(name: str) -> None:
    found = {
        what: (float(least), float(most))
        for what, least, most in re.findall(
            r"(task|queue|priority|max_attempts|lease|lease_seconds|delay|delay_seconds)\)*(?:, 0\))?"
            r" (?:not )?between (-?[\d.]+) and ([\d.]+)",
            text(name),
        )
    }
    expected = {
        "task": (1, bounds.TASK_LENGTH_MAX),
        "queue": (1, bounds.QUEUE_LENGTH_MAX),
        "priority": (-bounds.PRIORITY_MAX, bounds.PRIORITY_MAX),
        "max_attempts": (1, bounds.ATTEMPTS_MAX),
        "lease": (bounds.LEASE_SECONDS_MIN, bounds.LEASE_SECONDS_MAX),
        "delay": (0, bounds.DELAY_SECONDS_MAX),
    }

    assert {what.removesuffix("_seconds"): bound for what, bound in found.items()} == expected


def test_sql_has_the_same_defaults() -> None:
    found = dict(re.findall(r"coalesce\(j\.(\w+), ([^)]+)\)", text("parse_jobs")))

    assert found["queue"] == f"'{bounds.QUEUE}'"
    assert float(found["priority"]) == bounds.PRIORITY
    assert float(found["max_attempts"]) == bounds.MAX_ATTEMPTS
    assert float(found["lease_seconds"]) == bounds.LEASE_SECONDS


def test_an_option_is_a_field_of_a_submission_and_a_word_of_a_call() -> None:
    assert set(Options().submitted()) <= {field.name for field in fields(Submission)}
    assert list(get_type_hints(TaskOptions)) == [field.name for field in fields(Options)]


def test_the_fields_of_a_submission_are_those_that_sql_knows() -> None:
    (known,) = re.findall(r"fields constant text\[\] := array\[(.*?)\]", text("read_jobs"), re.DOTALL)

    assert set(re.findall(r"'(\w+)'", known)) == {field.name for field in fields(Submission)}


def test_sql_has_the_same_settings_of_a_database() -> None:
    known = re.findall(r"\('(\w+)', (\d+), (\d+)\)", text("change_setting"))
    migrations = "".join(path.read_text() for path in SCHEMA.glob("migrations/*.sql"))
    defaults = re.findall(r"(\w+(?:_bytes_max|_seconds)) (?:bigint|integer) not null default (\d+)", migrations)

    assert {one.name: (one.least, one.most) for one in settings_of(DatabaseSettings)} == {
        name: (int(least), int(most)) for name, least, most in known
    }
    assert {one.name: one.default for one in settings_of(DatabaseSettings)} == {
        name: int(default) for name, default in defaults
    }
