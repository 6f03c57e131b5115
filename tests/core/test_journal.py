"""The journal's events are declared once, and the database writes those and no others."""

from __future__ import annotations

import re
from pathlib import Path

import faultline.schema
from faultline.core.journal import JournalEvent, kind_of

SCHEMA = Path(faultline.schema.__file__).parent
NAMES = {event.value for event in JournalEvent}


def written() -> set[str]:
    """The names in the lines that follow the column `event` of each insert into the journal, up to its detail."""
    found: set[str] = set()
    for path in SCHEMA.rglob("*.sql"):
        for insert in re.findall(
            r"insert into faultline\.journal \((.*?)\)\s(.*?)jsonb_build_object", path.read_text(), re.DOTALL
        ):
            assert "event" in insert[0]
            # In a `case`, what stands behind `when` is compared and not written.
            found |= set(re.findall(r"(?<!when )'(\w+)'", insert[1]))
    return found


def test_every_event_that_sql_writes_is_declared_and_every_declared_one_is_written() -> None:
    assert written() == NAMES


def test_the_table_takes_the_declared_events_and_no_others() -> None:
    stated = [
        set(re.findall(r"'(\w+)'", found))
        for path in sorted(SCHEMA.rglob("*.sql"))
        for found in re.findall(r"constraint known_event check \(event in \((.*?)\)\)", path.read_text(), re.DOTALL)
    ]

    assert stated[-1] == NAMES


def test_python_names_an_event_by_its_member_and_not_by_a_string() -> None:
    bare = re.compile(rf"event\b\)? *(?:=|<>|!=|in|not in) *\(?['\"](?:{'|'.join(NAMES)})['\"]")
    found = [
        f"{path}: {line.strip()}"
        for path in sorted(SCHEMA.parent.rglob("*.py"))
        for line in path.read_text().splitlines()
        if bare.search(line)
    ]

    assert found == []


def test_an_event_of_a_newer_build_is_no_error() -> None:
    assert kind_of("made_up_later") is None


def test_an_event_is_what_the_database_stores() -> None:
    assert f"{JournalEvent.LEASE_REAPED}" == "lease_reaped"
    assert {"lease_reaped": 1}[JournalEvent.LEASE_REAPED] == 1
