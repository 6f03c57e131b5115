"""The constraints, NOT NULLs and defaults of our tables in the numbered files, compared with the database's.

A person can drop any of these. `migrate` does not restore them: it would block every program while it reads the table, and
rows that were written meanwhile may violate them. The doctor prints the statement instead.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from faultline.store.install.schema_text import BOOK, meaning, numbered
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.store.statement import Rows

_TABLE = re.compile(r"create table (?:if not exists )?faultline\.(\w+) \(([^;]*?)\)(?: with \([^();]*\))?;")
_ADDED = re.compile(r"alter table faultline\.(\w+) (add (?:column|constraint) [^;]*);")
_DOMAIN = re.compile(r"create domain faultline\.(\w+) as \w+ constraint (\w+) (check \([^;]*\));")
_DEFAULT = re.compile(r" default ('[^']*'|-?[\w.()]+)")
#: The default of an identity column.
_IDENTITY = "identity"
#: Words that PostgreSQL may print differently.
_GRAMMAR = {"check", "in", "between", "and", "or", "is", "not", "null", "array"}
#: Constraints on our tables that others added. Its parameters: tables, constraints, constraints, tables.
FOREIGN = """select 'constraint', 'constraint ' || k.conname || ' on ' || c.relname,
  format('alter table faultline.%%I drop constraint %%I', c.relname, k.conname)
from pg_constraint k join pg_class c on c.oid = k.conrelid
where c.relnamespace = 'faultline'::regnamespace and c.relname = any (%s) and k.contype in ('c', 'f', 'p', 'u', 'x')
  and c.relname || '.' || k.conname <> all (%s)
union all
select 'constraint', 'constraint ' || k.conname || ' on ' || d.typname,
  format('alter domain faultline.%%I drop constraint %%I', d.typname, k.conname)
from pg_constraint k join pg_type d on d.oid = k.contypid
where d.typnamespace = 'faultline'::regnamespace and k.contype = 'c' and d.typname || '.' || k.conname <> all (%s)
union all
select 'constraint', 'constraint ' || k.conname || ' of ' || k.conrelid::regclass || ' on ' || c.relname,
  format('alter table %%s drop constraint %%I', k.conrelid::regclass, k.conname)
from pg_constraint k join pg_class c on c.oid = k.confrelid join pg_class s on s.oid = k.conrelid
where c.relnamespace = 'faultline'::regnamespace and s.relnamespace <> c.relnamespace and k.contype = 'f'
union all
select 'unique index',
  'unique index ' || (select x.relname from pg_class x where x.oid = i.indexrelid) || ' on ' || c.relname,
  format('drop index %%s', i.indexrelid::regclass)
from pg_index i join pg_class c on c.oid = i.indrelid
where c.relnamespace = 'faultline'::regnamespace and c.relname = any (%s) and i.indisunique
  and not exists (select from pg_constraint k where k.conindid = i.indexrelid)"""


class Lack(NamedTuple):
    what: str
    #: The statement that restores it.
    cure: str


class Numbering(NamedTuple):
    """How the journal's entries get their numbers. A sequence that was never used has no last number."""

    sequence: str
    #: It counts by one, without end.
    plain: bool
    #: False if this login may not see the last number.
    seen: bool
    last: int | None
    greatest: int | None

    @property
    def behind(self) -> bool:
        return self.seen and (self.last or 0) < (self.greatest or 0)

    @property
    def cure(self) -> tuple[str, str]:
        """Run both in one transaction: the first one keeps others from taking numbers."""
        return (
            f"alter sequence {self.sequence} as bigint increment 1 minvalue 1 no maxvalue no cycle cache 1 restart 1",
            f"select setval('{self.sequence}', max(id)) from faultline.journal",
        )


class _Shape(NamedTuple):
    #: `table.constraint` → its definition.
    constraints: dict[str, str]
    #: `table.column` → whether it is NOT NULL, and its default.
    columns: dict[str, tuple[bool, str | None]]
    domains: set[str]
    #: The number of a file → the columns it adds.
    files: dict[int, set[str]]


def lacks() -> Statement[list[Lack]]:
    """Our constraints, NOT NULLs and defaults that are missing or different."""
    return Statement(
        name="lacks",
        sql="""
select true, coalesce(c.relname, d.typname) || '.' || k.conname, k.convalidated, pg_get_constraintdef(k.oid)
from pg_constraint k
left join pg_class c on c.oid = k.conrelid
left join pg_type d on d.oid = k.contypid
where k.connamespace = 'faultline'::regnamespace
union all
select false, c.relname || '.' || a.attname, a.attnotnull,
  case when a.attidentity = '' then pg_get_expr(e.adbin, e.adrelid) else 'identity' end
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
left join pg_attrdef e on e.adrelid = c.oid and e.adnum = a.attnum
where c.relnamespace = 'faultline'::regnamespace and c.relkind = 'r'
""",
        params=(),
        read=lambda rows: [*_lacking_constraints(rows), *_lacking_columns(rows)],
        repeatable=True,
        reads=True,
    )


def numbering() -> Statement[Numbering | None]:
    """None if the sequence is gone, which `lacks` reports. Logical replication copies rows but no sequences."""
    return Statement(
        name="numbering",
        sql="""
select s.seqrelid::regclass::text,
  s.seqtypid = 'bigint'::regtype and s.seqincrement = 1 and s.seqmax = 9223372036854775807 and s.seqcache = 1
    and not s.seqcycle,
  has_sequence_privilege(s.seqrelid, 'select'),
  case when has_sequence_privilege(s.seqrelid, 'select') then pg_sequence_last_value(s.seqrelid) end,
  (select max(j.id) from faultline.journal j)
from pg_sequence s
where s.seqrelid = pg_get_serial_sequence('faultline.journal', 'id')::regclass
""",
        params=(),
        read=lambda rows: Numbering(*rows[0]) if rows else None,
        repeatable=True,
        reads=True,
    )


def applied() -> Statement[set[int]]:
    """The numbered files of which a column exists, whatever the records say."""
    return Statement(
        name="applied",
        sql="""
select c.relname || '.' || a.attname
from pg_class c
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = 'faultline'::regnamespace and c.relkind = 'r'
""",
        params=(),
        read=lambda rows: {number for number, columns in _shape().files.items() if columns & {name for (name,) in rows}},
        repeatable=True,
        reads=True,
    )


def unrecorded() -> Statement[list[str]]:
    """The numbered files without a record. Only the owner may read the records."""
    return Statement(
        name="unrecorded",
        sql="select number from faultline.schema_files",
        params=(),
        read=lambda rows: [file.name for file in numbered() if (file.number,) not in set(rows)],
        repeatable=True,
        reads=True,
    )


def constraints() -> tuple[str, ...]:
    """`table.constraint`, and `domain.constraint`."""
    return tuple(_shape().constraints)


def tables() -> tuple[str, ...]:
    return tuple({name.partition(".")[0] for name in _shape().columns})


def _lacking_constraints(rows: Rows) -> Iterator[Lack]:
    found = {name: definition for is_constraint, name, holds, definition in rows if is_constraint and holds}
    for name, definition in _shape().constraints.items():
        if not _is_same(definition, found.get(name, "")):
            relation, _, own = name.partition(".")
            drop, add = f"drop constraint if exists {own}", f"add constraint {own} {definition}"
            if relation in _shape().domains:
                cure = f"alter domain faultline.{relation} {drop}; alter domain faultline.{relation} {add}"
            else:
                cure = f"alter table faultline.{relation} {drop}, {add}"
            yield Lack(f"constraint {name} is missing, not validated, or has another definition", cure)


def _lacking_columns(rows: Rows) -> Iterator[Lack]:
    found = {name: (must, default) for is_constraint, name, must, default in rows if not is_constraint}
    for name, (must, default) in _shape().columns.items():
        table, _, column = name.partition(".")
        alter = f"alter table faultline.{table} alter {column}"
        if name not in found:
            yield Lack(f"column {name} is missing", "restore the table from a copy of the database")
            continue
        there, given = found[name]
        if there != must:
            yield Lack(
                f"column {name} {'may be null' if must else 'must not be null'}",
                f"{alter} {'set' if must else 'drop'} not null",
            )
        if default == _IDENTITY != given:
            sequence = f"pg_get_serial_sequence('faultline.{table}', '{column}')"
            follow = f"select setval({sequence}, max({column})) from faultline.{table}"
            yield Lack(f"column {name} is not an identity column", f"{alter} add generated always as identity; {follow}")
        elif _plain(given) != default:
            yield Lack(
                f"column {name} has another default", f"{alter} {f'set default {default}' if default else 'drop default'}"
            )


def _is_same(ours: str, found: str) -> bool:
    """PostgreSQL prints a check in its own form: compare the columns, values and functions in it."""
    if not ours.startswith("check"):
        # It quotes columns with the name of a keyword: "position".
        return ours == found.lower().replace('"', "")
    return _words(ours) <= _words(found)


def _words(definition: str) -> set[str]:
    return set(re.findall(r"\w+", definition.lower())) - _GRAMMAR


def _plain(default: str | None) -> str | None:
    """Without the casts that PostgreSQL adds, and the quotes that it puts around a number below zero."""
    return re.sub(r"'(-\d+)'", r"\1", re.sub(r"::[\w .\[\]]+", "", default)) if default else None


@cache
def _shape() -> _Shape:
    shape = _Shape({}, {}, set(), {})
    for number, text in [(0, BOOK), *((file.number, file.text) for file in numbered())]:
        _read(shape, number, meaning(text))
    return shape


def _read(shape: _Shape, number: int, text: str) -> None:
    before = set(shape.columns)
    for domain, name, definition in _DOMAIN.findall(text):
        shape.domains.add(domain)
        shape.constraints[f"{domain}.{name}"] = definition
    for table, body in [*_TABLE.findall(text), *_ADDED.findall(text)]:
        for part in _parts(body):
            _take(shape, table, part.removeprefix("add column ").removeprefix("add "))
    shape.files[number] = set(shape.columns) - before


def _take(shape: _Shape, table: str, part: str) -> None:
    """Add a column or a constraint of a table. A constraint without a name gets PostgreSQL's default name."""
    first, _, rest = part.partition(" ")
    if first == "constraint":
        name, _, definition = rest.partition(" ")
        shape.constraints[f"{table}.{name}"] = definition.removesuffix(" not valid")
    elif part.startswith("primary key"):
        shape.constraints[f"{table}.{table}_pkey"] = part
    else:
        plain, is_checked, check = part.partition(" check ")
        default = _DEFAULT.search(plain)
        shape.columns[f"{table}.{first}"] = (
            " not null" in plain or " primary key" in plain,
            default[1] if default else _IDENTITY if f" {_IDENTITY}" in plain else None,
        )
        if " primary key" in plain:
            shape.constraints[f"{table}.{table}_pkey"] = f"primary key ({first})"
        if plain.endswith(" unique"):
            shape.constraints[f"{table}.{table}_{first}_key"] = f"unique ({first})"
        if is_checked:
            shape.constraints[f"{table}.{table}_{first}_check"] = f"check {check}"


def _parts(body: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    depth, part = 0, ""
    for sign in body:
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and not depth:
            yield part.strip()
            part = ""
        else:
            part += sign
    yield part.strip()
