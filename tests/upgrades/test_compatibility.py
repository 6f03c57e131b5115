"""What the previous build's programs rely on is still there, and the version says so when something changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

import faultline
from faultline.store.install.schema_text import meaning, protocol, protocol_in
from tests.upgrades.builds import Build, texts

PACKAGE = Path(faultline.__file__).parent
_VERBS = """
select p.proname::text,
  (select array_agg(t.type::regtype::text order by t.place) from unnest(p.proargtypes) with ordinality as t (type, place)),
  p.proargnames[:p.pronargs]::text[], p.pronargs - p.pronargdefaults, p.proretset,
  case when p.proargmodes is null then p.prorettype::regtype::text end,
  (select array_agg(p.proargnames[m.place] || ' ' || p.proallargtypes[m.place]::regtype order by m.place)
   from unnest(p.proargmodes) with ordinality as m (mode, place) where m.mode in ('t', 'o'))
from pg_proc p
where p.pronamespace = 'faultline'::regnamespace
  and exists (select from aclexplode(p.proacl) a where a.grantee <> p.proowner and a.privilege_type = 'EXECUTE')
"""
_FUNCTIONS = """
select p.proname::text,
  (select array_agg(t.type::regtype::text order by t.place) from unnest(p.proargtypes) with ordinality as t (type, place)),
  p.proargnames::text[], p.pronargs - p.pronargdefaults, p.prorettype::regtype::text, p.proretset
from pg_proc p
where p.pronamespace = 'faultline'::regnamespace and not exists (
  select from aclexplode(p.proacl) a where a.grantee <> p.proowner and a.privilege_type = 'EXECUTE')
"""
_COLUMNS = """
select c.relname || '.' || a.attname, a.atttypid::regtype::text
from pg_class c join pg_attribute a on a.attrelid = c.oid
where c.relnamespace = 'faultline'::regnamespace and c.relkind in ('r', 'v', 'c') and a.attnum > 0 and not a.attisdropped
"""


def test_a_changed_schema_has_a_higher_version(previous: Path) -> None:
    """One step for each release, whatever changed in between. Raise it in schema/base/internal/protocol.sql."""
    before, now = texts(previous / "faultline"), texts(PACKAGE)
    version = protocol_in(before["protocol.sql"]).version
    changed = {name for name, text in now.items() if meaning(text) != meaning(before.get(name, ""))}

    assert protocol().version == version + bool(changed | (before.keys() - now.keys()))
    assert protocol().serves_from <= version


def test_the_numbered_files_of_the_previous_build_are_unchanged(previous: Path) -> None:
    before = {name: text for name, text in texts(previous / "faultline").items() if name[:4].isdigit()}

    assert before
    assert {name: texts(PACKAGE)[name] for name in before} == before


@pytest.mark.long
def test_the_previous_builds_calls_find_their_verbs(dsn: str, empty_dsn: str, previous: Path) -> None:
    """By place or by name, with as few arguments as before; and the answers begin with the columns that they had."""
    Build(empty_dsn, previous).run("-m", "faultline", "migrate")
    with psycopg.connect(empty_dsn) as earlier, psycopg.connect(dsn) as this:
        ours = this.execute(_VERBS).fetchall()

        for name, types, names, required, many, answer, columns in earlier.execute(_VERBS).fetchall():
            # A verb may stand there several times, for several types of one parameter.
            found = [row[2:] for row in ours if row[0] == name and _begins(row[1], types)]
            assert found, f"{name} is gone, or has other types of parameters"
            our_names, our_required, our_many, our_answer, our_columns = found[0]
            assert _begins(our_names, names), f"{name}: other names of parameters"
            assert our_required <= required, f"{name}: needs more parameters"
            assert (our_many, our_answer) == (many, answer), f"{name}: another kind of answer"
            assert _begins(our_columns, columns), f"{name}: other columns in its answer"


@pytest.mark.long
def test_the_previous_builds_calls_in_flight_find_their_helpers(dsn: str, empty_dsn: str, previous: Path) -> None:
    """In the old text, after the migration. So a helper that is to answer otherwise needs other types, or another name."""
    Build(empty_dsn, previous).run("-m", "faultline", "migrate")
    with psycopg.connect(empty_dsn) as earlier, psycopg.connect(dsn) as this:
        ours = {(name, tuple(types or ())): about for name, types, *about in this.execute(_FUNCTIONS).fetchall()}
        for name, types, *about in earlier.execute(_FUNCTIONS).fetchall():
            assert ours.get((name, tuple(types or ())), about) == about, f"{name}: another answer, or other parameters"


def test_the_tables_and_views_of_the_previous_build_have_all_their_columns(dsn: str, empty_dsn: str, previous: Path) -> None:
    Build(empty_dsn, previous).run("-m", "faultline", "migrate")
    with psycopg.connect(empty_dsn) as earlier, psycopg.connect(dsn) as this:
        ours = set(this.execute(_COLUMNS).fetchall())

        assert set(earlier.execute(_COLUMNS).fetchall()) <= ours


def _begins(longer: list[Any] | None, shorter: list[Any] | None) -> bool:
    return (longer or [])[: len(shorter or [])] == (shorter or [])
