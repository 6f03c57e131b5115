"""The guards of those who wait under limits: who is called, what is removed, and whose turn it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

_LEVELS = ("j.priority > level and j.priority < case when level < 0 then 0 else 32768 end", "j.priority > level")

GUARDS: Guards = {
    "has_due_ungrouped": {
        "does not search for priority 0": _LEVELS,
        "looks at the first thousand": ("        limit 1000\n", ""),
    },
    "pick_ungrouped": {
        "does not search for priority 0": _LEVELS,
        "passes over a thousand others at most": ("- cardinality(ctids) + 1000", "+ 1000000"),
        "takes those behind others": ("- cardinality(ctids) + 1000", "- cardinality(ctids)"),
    },
    "budget_raised_since_asked": {
        "looks at what this run was told": (" and (w.value ->> 'token')::bigint = j.fencing_token", ""),
        "locks the budgets": "    for share of b\n",
        "compares the moments": ("if one.raised_at >= one.asked_at then", "if one.raised_at is not null then"),
    },
    "wake_budget_waiters": {
        "calls those who wait": ("    set next_run_at = at, suspended = null, takes", "    set takes"),
        "calls who was told before": (
            "(j.takes #> path ->> 'asked_at')::timestamptz <= raised\n    for",
            "j.takes #> path is not null\n    for",
        ),
        "lets those sleep who do not wait for it": (
            "(j.takes #> path ->> 'asked_at')::timestamptz <= raised\n    for",
            "true\n    for",
        ),
        "waits for no lock": ("    for update skip locked\n", "    for update\n"),
        "notes whom it could not call": ("    select array_agg(j.id) from", "    select null::uuid[] from"),
        "forgets whom it has called": (
            "(\n    select array_agg(j.id) from",
            "(\n    select coalesce(array_agg(j.id), b.asleep) from",
        ),
        "forgets what they waited for": ("takes = j.takes #- path", "takes = j.takes"),
        "wakes workers": ("  perform faultline.wake_for(woken);\n", ""),
    },
    "reconcile": {
        "calls who was locked when a budget was raised": ("where b.asleep is not null", "where false"),
        "waits for nobody who takes": ("order by b.name for update skip locked", "order by b.name for update"),
    },
    "keep_rate": {
        "keeps the time": ("if not fields ? 'per' then", "if false then"),
        "keeps the burst": ("if not fields ? 'burst' then", "if false then"),
        "lowers the burst with the rate": ("(kept ->> 'rate')::numeric", "(in_force ->> 'rate')::numeric"),
        "lowers the burst with the time": ("(kept ->> 'per')::numeric", "(in_force ->> 'per')::numeric"),
        "raises no burst": ("        (in_force ->> 'burst')::numeric,\n", ""),
    },
    "reserve_budget_slot": {"says when it asked": ("    'asked_at', at\n", "    'asked_at', 'infinity'::timestamptz\n")},
    "release": {
        "asks again if a budget was raised": (
            "          when j.takes is not null and faultline.budget_raised_since_asked(j.id) then faultline.clock()\n"
        ),
    },
    "orphaned_budget": {
        "keeps what people have set": (" and b.override = '{}'", ""),
        "asks who has it": ("coalesce(orphaned_budget.budget <> all (w.budgets), false)", "true"),
        "asks those who do not say": ("all (w.budgets), false)", "all (w.budgets), true)"),
        "asks the living alone": ("      where w.heartbeat_at > faultline.clock() - interval '15 seconds'\n", ""),
        "wants a worker": ("    ), false);", "    ), true);"),
    },
    "set_budget": {
        "removes what is orphaned": (
            "if set_budget.fields is null and faultline.orphaned_budget(set_budget.budget) then",
            "if false then",
        ),
        "removes nothing that is set": (
            "if set_budget.fields is null and faultline.orphaned_budget",
            "if faultline.orphaned_budget",
        ),
    },
    "pick_permit_holders": {
        "remembers the true time": (",\n          group_at = coalesce(j.group_at, j.next_run_at)", ""),
    },
    "recheck_groups": {
        "calls retries that were put off": (
            "    update faultline.open_jobs j set next_run_at = j.group_at",
            "    update faultline.open_jobs j set next_run_at = j.next_run_at",
        ),
        "calls those that were put off alone": (
            "        and j.group_at is not null\n",
            "        and (j.group_at is not null or true)\n",
        ),
        "calls those of the group alone": (
            "        and (recheck_groups.group_key = '*' or j.group_key = recheck_groups.group_key)\n      for update",
            "      for update",
        ),
    },
    "yield_to_waiting_worker": {
        "looks whether permits are left": (" and s.has_unmet_demand)", ")"),
        "looks at its own queue": (
            "where s.queue = yield_to_waiting_worker.queue and s.has_unmet_demand",
            "where s.has_unmet_demand",
        ),
    },
    "wake_one": {
        "does not wake the caller": (" and w.id <> wake_one.but_not", ""),
        "wakes who sleeps on this queue": ("where wake_one.queue = any (w.sleeping) and", "where"),
    },
}
