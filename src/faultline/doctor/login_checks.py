"""Check the logins of programs: settings that stop them are visible only in their own sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.doctor.checks import TIMEOUTS, Finding, Level
from faultline.explain.formatting import span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from faultline.store.reads.logins import Login

#: What a worker with a concurrency of 1 opens.
_CONNECTIONS_LEAST = 4
_READERS = {"faultline_viewer"}


def logins(seen: Sequence[Login]) -> Iterator[Finding]:
    for login in seen:
        for level, fact, todo in _judged(login):
            yield Finding("logins", level, f"{login.name} ({', '.join(login.roles)}) {fact}", todo)


def _judged(login: Login) -> Iterator[tuple[Level, str, str]]:
    alter = f'alter role "{login.name}"'
    if login.is_superuser:
        yield Level.WARNING, "is a superuser: it can bypass the guards and change every table", f"run: {alter} nosuperuser"
        return
    if login.is_on("default_transaction_read_only") and not _READERS.issuperset(login.roles):
        yield (
            Level.WRONG,
            "cannot write: default_transaction_read_only is on",
            f"run: {alter} reset default_transaction_read_only",
        )
    for role in login.not_inherited:
        fact = f"does not inherit {role}: its calls are refused unless the program runs SET ROLE"
        # Since PostgreSQL 16 each grant says whether it is inherited.
        todo = f'run: {alter} inherit; revoke {role} from "{login.name}"; grant {role} to "{login.name}"'
        yield Level.WARNING, fact, todo
    if "faultline_worker" in login.roles and 0 <= login.connection_limit < _CONNECTIONS_LEAST:
        fact = f"may open {login.connection_limit} connections, but a worker needs at least {_CONNECTIONS_LEAST}"
        yield Level.WARNING, fact, f"run: {alter} connection limit -1, or at least what all its workers need"
    for name, short_ms, why in TIMEOUTS:
        milliseconds = login.milliseconds(name)
        if 0 < milliseconds < short_ms:
            yield Level.WARNING, f"has a {name} of {span(milliseconds / 1000)}", f"{why}; run: {alter} reset {name}"
