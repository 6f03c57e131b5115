"""Mutants of the catalogue: every constraint, trigger, index and missing privilege that the migrated database has.

Nobody lists them by hand, so a new one that no probe knows of is noticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline_proof.mutants.texts import Mutant

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg


def taken_out(connection: psycopg.Connection) -> Iterator[Mutant]:
    """One mutant for each guard that the catalogue knows."""
    for about, query in _GUARDS.items():
        for table, guard, sql in connection.execute(query.encode()).fetchall():
            yield Mutant(f"{table}: {guard}", (about, table), sql)


#: Each answers with rows of (what it stands on, the guard, how it is taken out).
_GUARDS = {
    "table": """
        select c.relname, k.conname, format('alter table faultline.%I drop constraint %I', c.relname, k.conname)
        from pg_constraint k join pg_class c on c.oid = k.conrelid
        where c.relnamespace = 'faultline'::regnamespace and k.contype in ('c', 'p', 'u', 'x', 'f')
        union all
        select d.typname, k.conname, format('alter domain faultline.%I drop constraint %I', d.typname, k.conname)
        from pg_constraint k join pg_type d on d.oid = k.contypid
        where d.typnamespace = 'faultline'::regnamespace
        order by 1, 2
    """,
    "trigger": """
        select c.relname, t.tgname, format('drop trigger %I on faultline.%I', t.tgname, c.relname)
        from pg_trigger t join pg_class c on c.oid = t.tgrelid
        where c.relnamespace = 'faultline'::regnamespace and not t.tgisinternal
        order by 1, 2
    """,
    "null": """
        select c.relname, a.attname || ' is not null',
          format('alter table faultline.%I alter %I drop not null', c.relname, a.attname)
        from pg_attribute a join pg_class c on c.oid = a.attrelid
        where c.relnamespace = 'faultline'::regnamespace and c.relkind = 'r' and a.attnum > 0 and a.attnotnull
          and not a.attisdropped and a.attidentity = ''
          and not exists (
            select from pg_constraint k where k.conrelid = c.oid and k.contype = 'p' and a.attnum = any (k.conkey)
          )
        order by 1, 2
    """,
    "plan": """
        select t.relname, 'index ' || c.relname, format('drop index faultline.%I', c.relname)
        from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
        where c.relnamespace = 'faultline'::regnamespace
          and not exists (select from pg_constraint k where k.conindid = c.oid)
        order by 1, 2
    """,
    "role": """
        select c.relname, 'is not for everyone to ' || p.word,
          format('grant %s on faultline.%I to public', p.rights, c.relname)
        from pg_class c
        cross join (values ('read', 'select'), ('change', 'insert, update, delete, truncate')) as p (word, rights)
        where c.relnamespace = 'faultline'::regnamespace and c.relkind in ('r', 'v')
        union all
        select p.proname, 'is not for everyone to call',
          string_agg(format('grant execute on function %s to public', p.oid::regprocedure), '; ')
        from pg_proc p
        where p.pronamespace = 'faultline'::regnamespace
        group by p.proname
        union all
        select 'schema', 'is not for everyone to ' || p.word, format('grant %s on schema faultline to public', p.rights)
        from (values ('enter', 'usage'), ('change', 'create')) as p (word, rights)
        order by 1, 2
    """,
}
