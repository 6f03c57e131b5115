"""The logins of programs: members of the schema's roles, with the settings of each, which no other session shows."""

from __future__ import annotations

import re
from typing import NamedTuple

from faultline.store.reads.doctor_queries import ROLES
from faultline.store.rows import Column, RowOf
from faultline.store.statement import Statement

_MILLISECONDS = {"us": 0.001, "": 1.0, "ms": 1.0, "s": 1000.0, "min": 60_000.0, "h": 3_600_000.0, "d": 86_400_000.0}
_ON = ("on", "true", "yes", "1")


class Login(NamedTuple):
    name: str
    roles: list[str]
    is_superuser: bool
    #: Roles whose rights it has only after `set role`.
    not_inherited: list[str]
    #: -1: no limit.
    connection_limit: int
    #: What `alter role` has set for its sessions in this database.
    settings: dict[str, str]

    def milliseconds(self, setting: str) -> float:
        """0: no limit."""
        found = re.fullmatch(r"\s*([\d.]+)\s*(us|ms|s|min|h|d|)\s*", self.settings.get(setting, "0"))
        return float(found[1]) * _MILLISECONDS[found[2]] if found else 0.0

    def is_on(self, setting: str) -> bool:
        return self.settings.get(setting, "").lower() in _ON


def _parted(entries: list[str]) -> dict[str, str]:
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


_LOGIN = RowOf(
    Login,
    name="l.rolname::text",
    roles="array_agg(r.rolname::text order by r.rolname)",
    is_superuser="l.rolsuper",
    not_inherited="coalesce(array_agg(r.rolname::text order by r.rolname)"
    " filter (where not pg_has_role(l.oid, r.oid, 'usage')), '{}')",
    connection_limit="l.rolconnlimit",
    # The settings for this database come last and win.
    settings=Column(
        "array(select c.entry from pg_db_role_setting s cross join unnest(s.setconfig) as c (entry)"
        " where s.setrole = l.oid"
        " and s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))"
        " order by s.setdatabase)",
        _parted,
    ),
)


def logins() -> Statement[list[Login]]:
    """Every login may read this. PostgreSQL counts a superuser as a member of every role; here only grants count."""
    return Statement(
        name="logins",
        sql=f"""
select {_LOGIN.columns}
from pg_roles l
join pg_roles r on r.rolname = any (%s)
  and case
    when l.rolsuper then exists (select from pg_auth_members m where m.member = l.oid and m.roleid = r.oid)
    else pg_has_role(l.oid, r.oid, 'member')
  end
where l.rolcanlogin
group by l.oid, l.rolname, l.rolsuper, l.rolconnlimit
order by 1
""",
        params=(list(ROLES),),
        read=_LOGIN.many,
        repeatable=True,
        reads=True,
    )
