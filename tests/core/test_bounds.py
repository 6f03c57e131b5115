"""Python and SQL refuse the same values, and have the same defaults."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

import faultline.schema
from faultline.attempt.options import Options, TaskOptions
from faultline.core import bounds
from faultline.core.model import Submission
from faultline.core.settings import DatabaseSettings, settings_of
from faultline.store.install.schema_text import function_text

SCHEMA = Path(faultline.schema.__file__).parent
GIVEN = {field.name: field.metadata["given"] for field in fields(Submission) if "given" in field.metadata}
#: Of `faultline.enqueue`, which knows the columns that plain SQL gives.
PARAMETERS = {"task", "queue", "priority", "max_attempts", "lease", "delay"}


def text(name: str) -> str:
    """Of a function, or of a file that has other things."""
    others = {file.stem: file.read_text() for file in (*SCHEMA.glob("migrations/*.sql"), *SCHEMA.glob("*.sql"))}
    return others.get(name) or function_text(name)


@pytest.mark.parametrize("name", ["enqueue", "parse_new_jobs"])
def test_sql_has_the_same_bounds(name: str) -> None:
    found = {
        what: (float(least), float(most))
        for what, least, most in re.findall(
            r"(\w+?)(?:_seconds|_key)?\)*(?:, 0\))? (?:not )?between (-?[\d.]+) and ([\d.]+)", text(name)
        )
    }
    expected = {what.removesuffix("_seconds"): (one.least, one.most) for what, one in GIVEN.items() if one.most is not None}
    expected["task"] = (1, bounds.TASK_LENGTH_MAX)

    assert len(expected) >= 6
    for what in expected if name == "parse_new_jobs" else PARAMETERS & expected.keys():
        assert found[what] == expected[what], what


def test_sql_has_the_same_defaults() -> None:
    found = dict(re.findall(r"coalesce\(j\.(\w+), ([^)]+?)\)", text("parse_new_jobs")))

    for what, default in ((name, one.default) for name, one in GIVEN.items() if one.default is not None):
        said = found[what].strip("'")
        assert (said if isinstance(default, str) else json.loads(said)) == default, what


def test_an_option_is_a_field_of_a_submission_and_a_word_of_a_call() -> None:
    assert set(Options().submitted()) <= {field.name for field in fields(Submission)}
    assert list(get_type_hints(TaskOptions)) == [field.name for field in fields(Options)]


def test_the_fields_of_a_submission_are_those_that_sql_knows() -> None:
    (read,) = re.findall(r"json_to_recordset\(.*?\) as \((.*?)\)\)", text("parse_new_jobs"), re.DOTALL)

    # The digest is for the key, and becomes nothing of the job.
    assert {*re.findall(r"(\w+)\"? \w+(?:,|$)", read.strip()), "digest"} == {field.name for field in fields(Submission)}


def test_a_new_job_is_read_as_it_is_inserted() -> None:
    """They meet by position. What is only the view's or only the reader's is noticed by PostgreSQL."""
    (read,) = re.findall(r"returns table \((.*?)\n\)", text("parse_new_jobs"), re.DOTALL)
    (inserted,) = re.findall(r"view faultline\.new_jobs as\nselect(.*?)from", text("views"), re.DOTALL)

    assert re.findall(r"^ +(\w+) ", read, re.MULTILINE) == re.findall(r"j\.(\w+)", inserted)


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


def test_sql_has_the_same_limits_of_flows() -> None:
    def limit(name: str, what: str) -> int:
        (found,) = re.findall(rf"{what} constant integer := (?:case .*? then )?(\d+)", text(name))
        return int(found)

    assert limit("read_chunk", "jobs_max") == bounds.CHILDREN_MAX
    assert limit("read_chunk", "chunk_max") == bounds.SPAWN_CHUNK
    assert limit("signal", "kept_max") == bounds.SIGNALS_KEPT_MAX
    assert f"floor not between 0 and {bounds.TOKEN_FLOOR_MAX} " in text("recover")
    assert f"length(signal.name), 0) not between 1 and {bounds.SIGNAL_NAME_LENGTH_MAX} " in text("signal")
    assert f"length(signal.key) not between 1 and {bounds.KEY_LENGTH_MAX} " in text("signal")
    assert f"stream.name, {bounds.STREAM_NAME_LENGTH_MAX}, " in text("stream")
    # Room for the number of one more call inside.
    assert f"length(number) <= {bounds.CALL_NUMBER_LENGTH_MAX + 20})" in text("0001_initial")
    assert f"coalesce(receive.seconds, {bounds.WAIT_SECONDS:.0f})" in text("receive")
    assert f"left(given.error, {bounds.ERROR_LENGTH_MAX})" in text("record")
    for name in ("check_call", "receive"):
        assert f"between 0 and {bounds.DELAY_SECONDS_MAX:.0f}" in text(name)


def test_sql_has_the_same_bounds_of_limits() -> None:
    found = {
        what: (float(least), float(most))
        for what, least, most in re.findall(
            r"f\.key = '(\w+)' and \(?\s*f\.value::numeric not between ([\d.]+) and (\d+)", text("checked_limit")
        )
    }

    assert found == {
        "concurrency": (1, bounds.CONCURRENCY_MAX),
        "rate": (bounds.RATE_MIN, bounds.LIMIT_MAX),
        "per": (bounds.PER_SECONDS_MIN, bounds.PER_SECONDS_MAX),
        "burst": (1, bounds.LIMIT_MAX),
        "weight": (bounds.WEIGHT_MIN, bounds.WEIGHT_MAX),
    }
