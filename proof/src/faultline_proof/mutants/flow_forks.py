"""The guards of forks: what goes with one, and what would not be there any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

GUARDS: Guards = {
    "fork": {
        "finds no job of another queue": (
            "where j.id = fork.job_id and (fork.only_queues is null or j.queue = any (fork.only_queues));",
            "where j.id = fork.job_id;",
        ),
        "refuses an unknown job": (
            "if not found then\n    raise exception 'no job %'",
            "if false then\n    raise exception 'no job %'",
        ),
        "begins one job however often it is sent": ("      return fork_id;\n    end if;", "      null;\n    end if;"),
        "refuses the id of another job": (
            "n.event = 'forked' and n.detail ->> 'from' = fork.job_id::text",
            "true",
        ),
        "keeps prune away": (" and not f.pruning for key share skip locked;", " and not f.pruning;"),
        "waits for no prune": (" and not f.pruning for key share skip locked;", " and not f.pruning for key share;"),
        "refuses an unknown call": ("if cut_at is null then", "if false then"),
        "keeps calls of a job that has not failed": ("if original.state in ('failed', 'cancelled') then", "if true then"),
        "begins a flow": ("  insert into faultline.flows (id, begun_at) values (fork_id, at);\n", ""),
        "wakes a worker": (
            "perform faultline.wake_new(array[original.queue], original.priority::integer, at, at, 1);",
            "null;",
        ),
    },
    "refuse_fork": {
        "refuses the root of a graph": ("c.number = '0' and c.kind = 'children') then", "false) then"),
        "lets a saga be that was left": (
            "c.kind = 'saga' and c.outcome = 'failed'",
            "c.kind = 'saga' and c.ended_at is not null",
        ),
        "refuses what was undone": ("if undone is not null then", "if false then"),
        "looks for what was undone before the call only": (
            "c.outcome = 'failed'\n    and (cut is null or string_to_array(c.number, '.')::numeric[] < cut)",
            "c.outcome = 'failed'",
        ),
        "refuses a job of a graph that has not begun": (
            "c.ended_at is null\n      and faultline.open_child(c.id, 2147483647) is not null",
            "false",
        ),
    },
    "args_of_fork": {
        "refuses arguments that are no object": ("elsif json_typeof(given) <> 'object' then", "elsif false then"),
        "refuses arguments that were not kept": ("if given is null then", "if false then"),
    },
    "calls_to_copy": {
        "leaves out calls that stopped a failed job": ("    and c.id <> all (calls_to_copy.stopped)\n", ""),
        "leaves out calls that have not ended": ("(c.ended_at is not null or c.kind = 'after')", "true"),
        "keeps what a job of a graph came after": ("(c.ended_at is not null or c.kind = 'after')", "c.ended_at is not null"),
        "leaves out calls from the one given on": (
            "    and (calls_to_copy.cut is null or string_to_array(c.number, '.')::numeric[] < calls_to_copy.cut)\n",
            "",
        ),
        "leaves out pauses between tries": ("    and c.kind <> 'retry'\n", ""),
        "leaves out changes that come later": ("c.kind <> 'patch' or calls_to_copy.cut is null", "true"),
        "leaves out what lost a race that has not ended": (
            "c.outcome is distinct from 'closed' or calls_to_copy.cut is null",
            "true",
        ),
        "keeps what lost a race that has ended": (
            "r.ended_moment = c.ended_moment\n        and string_to_array(r.number, '.')::numeric[] < calls_to_copy.cut",
            "false",
        ),
        "copies results of jobs that may be pruned": ("c.kind in ('children', 'watch') and c.outcome = 'done'", "false"),
        "keeps the results that were taken": (" || (c.result -> 'results'))", ")"),
        "copies what a job of a graph came after": ("when c.kind = 'after' then", "when false then"),
    },
    "copy_history": {
        "compares no arguments that named the other job": (
            "regexp_replace(s.digest, '(^|:)~[0-9a-f]{32}(?=/|$)', '\\1~', 'g')",
            "s.digest",
        ),
        "begins above the tokens of the job": (
            "greatest(\n        copy_history.fencing_token,",
            "greatest(\n        0,",
            ("(select max(s.fencing_token) from faultline.steps s where s.job_id = copy_history.job_id)", "0"),
        ),
        "copies edges": ("    join faultline.edges e on e.call_id = s.id\n", "    join faultline.edges e on false\n"),
        "keeps steps from before the call": ("(cut_at is null or s.recorded_at < cut_at)", "cut_at is null"),
        "leaves out steps from after the call": ("(cut_at is null or s.recorded_at < cut_at)", "true"),
    },
    "upstream": {
        "reads what was copied for a fork": ("if taken.result ? 'upstream' then", "if false then"),
    },
}
