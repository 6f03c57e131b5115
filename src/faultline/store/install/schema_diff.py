"""Find what a database lacks of this build's definitions, and what others added.

A restore into a cluster without the roles loses grants, and a person can drop, switch off or weaken a guard. `migrate`
restores what `repairable` finds; only a person should remove what `foreign` finds.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from faultline.store.install import constraints
from faultline.store.install.definition_marks import (
    FUNCTION_MARK,
    IS_REPLACED,
    TRIGGER_MARK,
    VIEW_MARK,
    function_names,
    triggers,
    view_names,
)
from faultline.store.install.rights import granted_verbs
from faultline.store.install.schema_text import definition_files, meaning, numbered
from faultline.store.statement import Statement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.store.statement import Rows

#: Every privilege on our schema, tables and functions, with the owner's own.
_GRANTED = """
with granted as (
  select 'schema' as kind, n.nspname::text as name, 'schema faultline' as thing, n.nspowner as owner, a.grantee,
    lower(a.privilege_type) as privilege, 'on schema faultline' as place
  from pg_namespace n cross join aclexplode(n.nspacl) a where n.nspname = 'faultline'
  union all
  select 'table', c.relname, c.relname, c.relowner, a.grantee, lower(a.privilege_type), format('on faultline.%%I', c.relname)
  from pg_class c cross join aclexplode(c.relacl) a where c.relnamespace = 'faultline'::regnamespace
  union all
  select 'table', c.relname, c.relname || '.' || f.attname, c.relowner, a.grantee, lower(a.privilege_type),
    format('(%%I) on faultline.%%I', f.attname, c.relname)
  from pg_class c join pg_attribute f on f.attrelid = c.oid cross join aclexplode(f.attacl) a
  where c.relnamespace = 'faultline'::regnamespace
  union all
  select 'function', p.proname, p.proname || '()', p.proowner, a.grantee, lower(a.privilege_type),
    'on function ' || p.oid::regprocedure
  from pg_proc p cross join aclexplode(p.proacl) a where p.pronamespace = 'faultline'::regnamespace
)
"""
#: Kind, what it is, and the statement that removes it.
_FOREIGN = f"""
{_GRANTED}
select 'grant', 'grant of ' || g.privilege || ' on ' || g.thing || ' to ' || r.rolname,
  format('revoke %%s %%s from %%I', g.privilege, g.place, r.rolname) from granted g
join pg_roles r on r.oid = g.grantee
where r.oid <> g.owner and r.rolname <> all (%s)
  and case g.kind
    -- Allowed: a verb of a role that it is a member of, or one of the producer's.
    when 'function' then not exists (
      select from unnest(%s::text[], %s::text[]) as v (role, verb)
      where v.verb = g.name and (v.role = 'faultline_producer' or pg_has_role(r.oid, to_regrole(v.role), 'member'))
    )
    else g.privilege not in ('select', 'usage')
  end
union all
select 'membership', 'membership of ' || m.rolname || ' in ' || o.rolname
  || case when o.oid = n.nspowner then ', who owns the tables' else '' end,
  format('revoke %%I from %%I', o.rolname, m.rolname)
from pg_auth_members a
join pg_roles o on o.oid = a.roleid
join pg_roles m on m.oid = a.member
join pg_namespace n on n.nspname = 'faultline'
where (
    -- A member of one of our roles who is also a member of another, or of the owner, escapes the limits of its role.
    m.rolname = any (%s) and (o.rolname = any (%s) or o.oid = n.nspowner)
    or o.oid = n.nspowner and not m.rolsuper and exists (
      select from pg_auth_members b join pg_roles w on w.oid = b.roleid where b.member = m.oid and w.rolname = any (%s)
    )
  )
  -- From PostgreSQL 16 on, the creator of a role is its administrator, which alone gives none of its rights.
  and coalesce((to_jsonb(a) ->> 'inherit_option')::boolean or (to_jsonb(a) ->> 'set_option')::boolean, true)
union all
select 'rule', 'rule ' || r.rulename || ' on ' || c.relname, format('drop rule %%I on faultline.%%I', r.rulename, c.relname)
from pg_rewrite r join pg_class c on c.oid = r.ev_class
where c.relnamespace = 'faultline'::regnamespace and r.rulename <> '_RETURN'
union all
select 'trigger', 'trigger ' || t.tgname || ' on ' || c.relname,
  format('drop trigger %%I on faultline.%%I', t.tgname, c.relname) from pg_trigger t join pg_class c on c.oid = t.tgrelid
where c.relnamespace = 'faultline'::regnamespace and not t.tgisinternal and c.relname || '.' || t.tgname <> all (%s)
union all
{constraints.FOREIGN}
union all
select 'row level security', 'row level security on ' || c.relname,
  format('alter table faultline.%%I disable row level security, no force row level security', c.relname) from pg_class c
where c.relnamespace = 'faultline'::regnamespace and (c.relrowsecurity or c.relforcerowsecurity)
union all
select 'function', case p.prokind when 'p' then 'procedure ' when 'a' then 'aggregate ' else 'function ' end || p.proname,
  format('drop routine %%s', p.oid::regprocedure) from pg_proc p
where p.pronamespace = 'faultline'::regnamespace and (p.proname <> all (%s) or p.prokind <> 'f') and not {IS_REPLACED}
union all
select 'heir', 'table ' || i.inhrelid::regclass || ' that inherits ' || c.relname,
  format('alter table %%s no inherit faultline.%%I', i.inhrelid::regclass, c.relname) from pg_inherits i
join pg_class c on c.oid = i.inhparent
where c.relnamespace = 'faultline'::regnamespace and c.relkind = 'r'
union all
select 'unlogged', 'unlogged table ' || c.relname || ', which the next crash empties',
  format('alter table faultline.%%I set logged', c.relname) from pg_class c
where c.relnamespace = 'faultline'::regnamespace and c.relkind = 'r' and c.relpersistence <> 'p'
union all
select 'setting', 'setting ' || s.setting || ', with which no guard fires',
  'alter role ' || coalesce(quote_ident(pg_get_userbyid(nullif(r.setrole, 0))), 'all')
  || case when r.setdatabase <> 0 then format(' in database %%I', current_database()) else '' end
  || ' reset session_replication_role' from pg_db_role_setting r
cross join unnest(r.setconfig) as s (setting)
where s.setting ~ '^session_replication_role=(replica|local)$'
  and r.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
union all
select 'owner', 'owner ' || pg_get_userbyid(c.relowner) || ' of ' || c.relname,
  format('alter %%s faultline.%%I owner to %%I', case c.relkind when 'v' then 'view' else 'table' end, c.relname,
    pg_get_userbyid(n.nspowner)) from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'faultline' and c.relkind in ('r', 'v', 'p', 'f') and c.relowner <> n.nspowner
union all
select 'owner', 'owner ' || pg_get_userbyid(p.proowner) || ' of function ' || p.proname,
  format('alter routine %%s owner to %%I', p.oid::regprocedure, pg_get_userbyid(n.nspowner)) from pg_proc p
join pg_namespace n on n.oid = p.pronamespace
where n.nspname = 'faultline' and p.proowner <> n.nspowner
order by 1, 2
"""
_HEADER = re.compile(r"create or replace function faultline\.(\w+)\((.*?)\bas \$\$(.*?)\$\$", re.DOTALL)
_SETTING = re.compile(r"^set (\w+) = (.*)$", re.MULTILINE)


_INDEX = re.compile(r"^create (?:unique )?index (\w+) on[^;]*;", re.MULTILINE)


def functions() -> Statement[list[str]]:
    """Functions of this build that are missing, or whose text, settings or rights were altered."""
    return Statement(
        name="functions",
        sql="select p.proname::text, p.prosrc, p.prosecdef, coalesce(p.proconfig, '{}'),"
        f" p.proname = 'protocol' or coalesce(obj_description(p.oid, 'pg_proc') = {FUNCTION_MARK}, false)"
        " from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        f" where n.nspname = 'faultline' and p.prokind = 'f' and not {IS_REPLACED}",
        params=(),
        read=lambda rows: sorted(set(_altered_functions(_by_name(rows)))),
        repeatable=True,
        reads=True,
    )


def guards() -> Statement[list[str]]:
    """Triggers of this build that are missing, switched off, or altered since `migrate`."""
    return Statement(
        name="guards",
        sql="select w.name from unnest(%s::text[]) as w (name) where not exists (select"
        " from pg_trigger t join pg_class c on c.oid = t.tgrelid where c.relnamespace = 'faultline'::regnamespace"
        " and c.relname || '.' || t.tgname = w.name and t.tgenabled in ('O', 'A')"
        f" and obj_description(t.oid, 'pg_trigger') = {TRIGGER_MARK}) order by 1",
        params=(list(triggers()),),
        read=_first_column,
        repeatable=True,
        reads=True,
    )


def grants() -> Statement[list[str]]:
    """What the roles lack. A missing role counts only if this login could create it: otherwise `migrate` cannot help."""
    roles, verbs = zip(*((role, verb) for role, granted in granted_verbs().items() for verb in granted), strict=True)
    return Statement(
        name="grants",
        sql="""
select w.role || ': does not exist' from unnest(%s::text[]) as w (role)
where to_regrole(w.role) is null
  and (select r.rolcreaterole or r.rolsuper from pg_roles r where r.rolname = current_user)
union all
select w.role || ': ' || p.proname from unnest(%s::text[], %s::text[]) as w (role, verb)
join pg_roles r on r.rolname = w.role
join pg_proc p on p.pronamespace = 'faultline'::regnamespace and p.proname = w.verb and p.prokind = 'f'
where not has_function_privilege(r.oid, p.oid, 'execute')
union all
select r.rolname || ': schema' from pg_roles r
where r.rolname = any (%s) and not has_schema_privilege(r.oid, 'faultline', 'usage')
union all
select r.rolname || ': ' || c.relname from pg_roles r cross join pg_class c
where r.rolname = any (%s) and c.relnamespace = 'faultline'::regnamespace
  and (c.relname in ('jobs', 'settings') or c.relname in ('open_jobs', 'ledger', 'journal', 'workers')
    and r.rolname in ('faultline_viewer', 'faultline_operator'))
  and not has_table_privilege(r.oid, c.oid, 'select')
order by 1
""",
        params=(list(granted_verbs()), list(roles), list(verbs), list(granted_verbs()), list(granted_verbs())),
        read=_first_column,
        repeatable=True,
        reads=True,
    )


def public_grants() -> Statement[list[str]]:
    """What PUBLIC may do: this build grants it nothing."""
    return Statement(
        name="public_grants",
        sql="""
select lower(a.privilege_type) || ' on schema faultline' from pg_namespace n
cross join aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
where n.nspname = 'faultline' and a.grantee = 0
union all
select lower(a.privilege_type) || ' on ' || c.relname from pg_class c
cross join aclexplode(c.relacl) a
where c.relnamespace = 'faultline'::regnamespace and a.grantee = 0
union all
select lower(a.privilege_type) || ' on ' || c.relname || '.' || f.attname from pg_class c
join pg_attribute f on f.attrelid = c.oid
cross join aclexplode(f.attacl) a
where c.relnamespace = 'faultline'::regnamespace and a.grantee = 0
union all
select lower(a.privilege_type) || ' on ' || p.proname || '()' from pg_proc p
cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
where p.pronamespace = 'faultline'::regnamespace and a.grantee = 0
order by 1
""",
        params=(),
        read=_first_column,
        repeatable=True,
        reads=True,
    )


def excess_grants() -> Statement[list[str]]:
    """What our roles may do that this build does not grant them."""
    roles, verbs = zip(*((role, verb) for role, granted in granted_verbs().items() for verb in granted), strict=True)
    return Statement(
        name="excess_grants",
        sql=f"""
{_GRANTED}
select r.rolname || ': ' || g.privilege || ' on ' || g.thing from granted g join pg_roles r on r.oid = g.grantee
where r.rolname = any (%s) and r.oid <> g.owner and not case
  when g.kind = 'schema' then g.privilege = 'usage'
  when g.kind = 'function' then (r.rolname, g.name) in (select * from unnest(%s::text[], %s::text[]))
  else g.privilege = 'select' and (
    g.name in ('jobs', 'settings') or r.rolname in ('faultline_viewer', 'faultline_operator')
    and (g.name in ('open_jobs', 'ledger', 'journal', 'steps', 'keys', 'workers', 'queues', 'tallies', 'samples', 'sampling',
        'flows', 'calls', 'edges', 'signals', 'nudges', 'sweeps', 'streams', 'subscriptions',
        'unique_keys', 'limits', 'limited_queues', 'groups', 'group_events', 'budgets',
        'schedules', 'ticks')
      or g.name = 'api_keys' and g.thing not in ('api_keys', 'api_keys.digest'))
  )
end
order by 1
""",
        params=(list(granted_verbs()), list(roles), list(verbs)),
        read=_first_column,
        repeatable=True,
        reads=True,
    )


def rows() -> Statement[list[str]]:
    """Tables that must have one row and have none."""
    return Statement(
        name="rows",
        sql="select 'settings' where not exists (select from faultline.settings)",
        params=(),
        read=_first_column,
        repeatable=True,
        reads=True,
    )


def views() -> Statement[list[str]]:
    return Statement(
        name="views",
        sql="select w.name from unnest(%s::text[]) as w (name) where not exists (select from pg_class c"
        " where c.relnamespace = 'faultline'::regnamespace and c.relname = w.name"
        f" and obj_description(c.oid, 'pg_class') = {VIEW_MARK})",
        params=(list(view_names()),),
        read=_first_column,
        repeatable=True,
        reads=True,
    )


def repairable() -> tuple[Statement[list[str]], ...]:
    """What `migrate` restores by applying the definitions again."""
    return functions(), guards(), views(), rows(), grants(), excess_grants(), public_grants()


class Foreign(NamedTuple):
    kind: str
    what: str
    #: The statement that removes it and changes nothing of ours.
    cure: str


def foreign() -> Statement[list[Foreign]]:
    """What others added to our tables and functions, or changed there: it could change what a verb does."""
    ours, tables, known = list(granted_verbs()), list(constraints.tables()), list(constraints.constraints())
    roles, granted = zip(*((role, verb) for role in ours for verb in granted_verbs()[role]), strict=True)
    return Statement(
        name="foreign",
        sql=_FOREIGN,
        params=(
            ours,
            list(roles),
            list(granted),
            ours,
            ours,
            ours,
            list(triggers()),
            tables,
            known,
            known,
            tables,
            [*function_names()],
        ),
        read=lambda rows: [Foreign(*row) for row in rows],
        repeatable=True,
        reads=True,
    )


def missing_indexes() -> Statement[list[tuple[str, str]]]:
    """Each missing index, and the statement that creates it. One that is invalid or different counts as missing."""
    wanted = {
        found[1]: " ".join(found[0].split()) for file in numbered() for found in _INDEX.finditer(_uncommented(file.text))
    }
    dropped = {name for file in numbered() for name in re.findall(r"drop index (?:if exists )?faultline\.(\w+)", file.text)}
    names = sorted(wanted.keys() - dropped)
    return Statement(
        name="missing_indexes",
        sql="select w.name, i.definition from unnest(%s::text[]) as w (name) left join ("
        "select c.relname, pg_get_indexdef(c.oid) as definition from pg_index i join pg_class c on c.oid = i.indexrelid"
        " where c.relnamespace = 'faultline'::regnamespace and i.indisvalid"
        ") i on i.relname = w.name order by 1",
        params=(names,),
        read=lambda rows: [(name, wanted[name]) for name, found in rows if _kind(found or "") != _kind(wanted[name])],
        repeatable=True,
        reads=True,
    )


def _kind(index: str) -> tuple[str, ...]:
    """What identifies an index: uniqueness, table, method, columns, and the values in its condition."""
    found = re.match(
        r"create (unique )?index \w+ on faultline\.(\w+)(?: using (\w+))? \(([\w, ]+)\)(?:.* where (.*))?",
        index,
        re.IGNORECASE,
    )
    if not found:
        return ()
    unique, table, method, columns, where = (part or "" for part in found.groups())
    values = re.findall(r"<>|'[^']*'", where)
    return unique.lower(), table, method or "btree", columns, *values


def _by_name(rows: Rows) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for name, *about in rows:
        found.setdefault(name, []).append(tuple(about))
    return found


def _altered_functions(found: dict[str, Rows]) -> Iterator[str]:
    for name in function_names():
        # Several functions may have one name, with arguments of different types.
        wanted, there = _bodies().get(name, []), found.get(name, [])
        if len(there) < max(1, len(wanted)):
            yield f"{name} is missing"
        for text, definer, settings, as_made in there:
            headers = [header for body, header in wanted if meaning(body) == meaning(text)]
            found_out = [f"{name} has another text"] if wanted and not headers else []
            for header in headers or [header for _, header in wanted[:1]]:
                found_out += _altered_header(name, header, definer, settings)
            # The mark also covers what has no message of its own: a body that only returns, strictness, volatility.
            yield from found_out if found_out or as_made else [f"{name} is not as migrate made it"]


def _altered_header(name: str, header: str, definer: object, settings: list[str]) -> Iterator[str]:
    if definer != (" security definer" in header):
        yield f"{name} {'runs' if definer else 'does not run'} with the rights of its owner"
    if {_squeezed(setting) for setting in settings} != {_squeezed("=".join(s)) for s in _SETTING.findall(header)}:
        yield f"{name} has other settings"


def _uncommented(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text)


def _squeezed(setting: str) -> str:
    return re.sub(r"[\s'\"]", "", setting)


@cache
def _bodies() -> dict[str, list[tuple[str, str]]]:
    """Function → its bodies, with the header between name and body. Without the few functions that only `return`."""
    bodies: dict[str, list[tuple[str, str]]] = {}
    for definition in definition_files():
        for found in _HEADER.finditer(definition.text):
            bodies.setdefault(found[1], []).append((found[3], found[2]))
    return bodies


def _first_column(rows: list[tuple[Any, ...]]) -> list[str]:
    return [row[0] for row in rows]
