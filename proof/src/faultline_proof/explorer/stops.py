"""Stops inside the verbs: a session stands still between two statements of a function until it is its turn again.

They are put into the functions as the explored database has them, a mutant's included: behind every statement that reads or
writes a table or takes a lock. A session stops in the functions that its program names, and nowhere else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import psycopg


#: A session says where it stops, then waits for one of two advisory locks in turn. A sequence says for which: unlike a
#: setting, it does not go back with a transaction that is rolled back.
#: The stop is an expression in an `if`, since `perform` would change what `found` says. A verb may have set a lock_timeout.
_GROUND = """
create schema stops;
grant usage on schema stops to public;
create function stops.here(function text, place integer) returns boolean language plpgsql volatile security definer
set lock_timeout = 0
as $$
declare
  number constant integer := nullif(current_setting('stops.number', true), '')::integer;
  way integer;
begin
  if number is not null and function = any (string_to_array(current_setting('stops.functions'), ' ')) then
    way := nextval('stops.turns_' || number) % 2;
    raise info 'stops.here % %', function, place;
    perform pg_advisory_lock_shared(number, way);
    perform pg_advisory_unlock_shared(number, way);
  end if;
  return false;
end
$$;
"""
#: What a function calls that neither reads what others write nor takes a lock that others want.
_IDLE = re.compile(
    r"faultline\.(?:clock|now|durable|allow_asynchronous_commit|set_current_verb|check_leases|check_most|check_name|new_id|digest|backoff|wake|wake_for|wake_new|wake_resolvers"
    r"|refuse|judge|read_committed|read_jobs|same_call|same_spawn|join_flow)\("
)
_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|;|\b(?:if|elsif|then|end\s+if|loop|end\s+loop)\b", re.IGNORECASE)
_RETURN = re.compile(r"\s*(?:raise|return(?! query)|exit)\b", re.IGNORECASE)
_WRITE = re.compile(r"\s*(?:else\s+)?(?:insert|update|delete)\b", re.IGNORECASE)
_END_IF = re.compile(r"\s*end\s+if\s*", re.IGNORECASE)
_FOR = re.compile(r"\s*for\b", re.IGNORECASE)


class Gate:
    """The two locks of one session, held by the one who watches."""

    def __init__(self, watcher: psycopg.Connection, number: int) -> None:
        self._watcher, self._number = watcher, number
        self._watcher.execute(f"create sequence if not exists stops.turns_{number} minvalue 0 start 0".encode())
        self._way = 0
        self._watcher.execute("select pg_advisory_lock(%s, 0)", (number,))

    def settings(self, functions: Iterable[str]) -> str:
        """What the session must be told first."""
        return f"set stops.number = '{self._number}'; set stops.functions = '{' '.join(functions)}'"

    def open(self) -> None:
        """Let the session go on from its stop, up to the next one."""
        self._watcher.execute(
            "select pg_advisory_lock(%s, %s), pg_advisory_unlock(%s, %s)",
            (self._number, 1 - self._way, self._number, self._way),
        )
        self._way = 1 - self._way


#: How a session says where it stops.
SAYS = "stops.here "


def put_into(connection: psycopg.Connection, functions: Iterable[str]) -> None:
    """Put stops into these functions. They are asked for by name, so all that share one get stops."""
    connection.execute(_GROUND)
    texts = connection.execute(
        "select p.proname, pg_get_functiondef(p.oid) from pg_proc p join pg_language l on l.oid = p.prolang"
        " where p.pronamespace = 'faultline'::regnamespace and l.lanname = 'plpgsql' and p.proname = any (%s)",
        (sorted(set(functions)),),
    ).fetchall()
    for name, text in texts:
        connection.execute(with_stops(name, text).encode())
    missing = set(functions) - {name for name, _ in texts}
    if missing:
        raise ValueError(f"there is no such function to stop in: {', '.join(sorted(missing))}")


def with_stops(function: str, text: str) -> str:
    """The definition with a stop behind each statement that touches anything."""
    begin = re.search(r"^begin\s*$", text, re.MULTILINE | re.IGNORECASE)
    end = text.rindex("$function$")
    if begin is None:
        raise ValueError(f"{function} has no line that begins its body")
    body = text[begin.end() : end]
    pieces, last = [], 0
    # What a function has read before its body begins is old when the body reads on.
    looks = "pg_current_snapshot()" in text[: begin.end()]
    places = [0, *_places(body, behind_then=True)] if looks else _places(body)
    for number, place in enumerate(places, start=1):
        pieces.append(body[last:place] + f" if stops.here('{function}', {number}) then null; end if;")
        last = place
    return text[: begin.end()] + "".join(pieces) + body[last:] + text[end:]


def _places(body: str, *, behind_then: bool = False) -> Iterator[int]:  # noqa: C901 - one pass, one case per word
    """Where stops belong: behind a statement that reads or locks, behind `end if` where the condition did, where a loop over
    rows begins, and behind the last of several writes: nobody else sees them one by one. With `behind_then` also between
    such a condition and what is done where it holds.
    """
    start = 0
    #: Of each `if` that is open: whether its condition reads or locks.
    conditions: list[bool] = []
    in_condition = False
    #: Behind a write, where the stop belongs if nothing else is read before the end.
    written: int | None = None
    for token in _TOKEN.finditer(body):
        word, before = token.group().lower(), body[start : token.start()]
        stop = False
        if word == ";":
            if _END_IF.fullmatch(before):
                stop = conditions.pop()
                written = written and token.end()
            elif _RETURN.match(before):
                if written:
                    yield written
                written = None
            elif _touches(before):
                stop = not _WRITE.match(before)
                written = token.end()
        elif word in ("if", "elsif") and not in_condition:
            in_condition = True
            conditions += [False] if word == "if" else []
        elif word == "then" and in_condition:
            in_condition = False
            conditions[-1] = conditions[-1] or _touches(before)
            stop = behind_then and _touches(before)
        elif word == "loop" and _FOR.match(before):
            stop = _touches(before)
        else:
            continue
        if stop:
            yield token.end()
            written = None
        start = token.end()
    if written:
        yield written


def _touches(statement: str) -> bool:
    code = re.sub(r"--[^\n]*|'(?:[^']|'')*'", "", statement)
    return "faultline." in _IDLE.sub("", code)
