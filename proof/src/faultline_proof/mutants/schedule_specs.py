"""The guards of what a schedule says, and of what its ticks make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "tick_job": {
        "fills the group of each tick": ("j.key = 'group' and json_typeof(j.value) = 'array'", "false"),
        "fills the key of each tick": ("j.key = 'unique' and json_typeof(j.value -> 'key') = 'array'", "false"),
        "writes the tick as programs do": (
            "coalesce(nullif(to_char(tick_job.at at time zone 'UTC', '.US'), '.000000'), '')",
            "to_char(tick_job.at at time zone 'UTC', '.US')",
        ),
    },
    "wait_behind": {
        "leaves what somebody is ending": ("  for update skip locked;\n", "  ;\n"),
        "says that it is waited for": ("set watched = true where", "set watched = j.watched where"),
        "waits": ("set suspended = true, next_run_at = '9999-01-01Z', in_group", "set in_group"),
    },
    "declare_schedules": {
        "locks in one order": ("  order by s.id\n  for update;\n", "  limit 0;\n"),
        "says who waits": ("      waiting := waiting ||", "      waiting := null ||"),
        "says what is waited for": ("|| coalesce(was.name, said.name);", "|| said.name;"),
        "forgets who has waited": ("n <> all (names || renamed)", "true"),
        "keeps what others wait for": ("n <> all (names || renamed)", "false"),
        "knows what the worker declared before": ("  returning w.schedules into mine;\n", ";\n"),
    },
    "declarations_in_order": {
        "renames before it uses a name again": ("(select max(t.turn) from turns t where t.name = d.name), ", ""),
        "renames a row of schedules from its end": ("where t.turn < cardinality(names)", "where t.turn < 1"),
        "knows what newer code has renamed": ("      where s.was = any (names)\n", "      where false\n"),
    },
    "find_declared": {
        "takes none that the same code declares": ("      and not coalesce(s.digest = any (mine), false)\n", ""),
    },
    "names_before": {
        "keeps the name that it is known to have had": ("coalesce(own.was = w.name, false) desc, ", ""),
        "takes the name that is in force": ("own.id is null and s.id is not null desc, ", ""),
    },
    "has_moved": {
        "follows a name that is in use again": ("    where l.name = any (has_moved.names)\n", "    where false\n"),
        "leaves a schedule that the code still has": ("where l.name <> all (has_moved.names)", "where true"),
    },
    "change_schedule": {
        "looks up what runs": (
            "      jobs = case\n        when coalesce",
            "      jobs = case\n        when false and coalesce",
        ),
    },
    "prune_ticks": {
        "brings schedules back": "  perform faultline.set_back_schedules();\n",
    },
    "set_back_schedules": {
        "keeps the moments of an interval": ("coalesce(w.last - ceil", "coalesce(null::timestamptz - ceil"),
        "looks at what has failed": (" or s.look_at > greatest(s.next_at, moment) + interval '10 minutes'", ""),
        "leaves paused ones alone": ("case when s.paused_at is null then moment end", "moment"),
        "lets a clock catch up": (
            "and (greatest(s.since, s.last_at) > moment + interval '1 minute' or",
            "and (greatest(s.since, s.last_at) > moment or",
            ("> moment + interval '1 minute' as is_ahead", "> moment as is_ahead"),
        ),
        "forgets what was decided ahead": (
            "        last_at = case when one.is_ahead then (",
            "        last_at = case when false then (",
        ),
        "forgets the next tick": ("next_at = case when not one.is_ahead then s.next_at end", "next_at = s.next_at"),
    },
    "tick_many": {
        "undoes a bad schedule alone": ("when others then", "when sqlstate 'FL999' then"),
        "passes over jobs that are locked": ("when lock_not_available then", "when sqlstate 'FL999' then"),
        "passes on what is about the moment": ("if sqlstate ~ '^(08|25|40|53|57|58|XX)' or", "if"),
        "takes no more than a server can keep apart": ("> 50 then", "> 5000 then"),
    },
    "check_schedule": {
        "wants numbers": ("where jsonb_typeof(given -> n.name) <> 'number'", "where false"),
        "wants a moment as workers read it": ("given ->> 'at' !~ moment", "false"),
        "wants the name of a zone": ("jsonb_typeof(given -> 'tz') <> 'string' or ", ""),
        "wants the same zone on every host": ("given ->> 'tz' ~* ", "false and given ->> 'tz' ~* "),
        "wants the name of an argument": ("jsonb_typeof(given -> 'tick_arg') <> 'string' or ", ""),
        "wants arguments": ("when jsonb_typeof(given -> 'job' -> 'args') <> 'object' then", "when false then"),
        "wants no jitter beside a debounce": (
            "when (given ->> 'jitter_seconds')::numeric > 0 and given -> 'job' -> 'unique' ->> 'debounce' is not null",
            "when false",
        ),
        "wants a jitter that ends before the job expires": (
            "when (given ->> 'jitter_seconds')::numeric >= (given -> 'job' ->> 'expires_seconds')::numeric",
            "when false",
        ),
    },
}
