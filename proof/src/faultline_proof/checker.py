"""Judge a run: does what its clients saw agree with what the database holds? No code of the engine is asked.

Calls that overlap may have taken effect in either order, and one without an answer at any time since it was invoked, or
never. So a fault is reported only where no order of events explains what was seen.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from faultline_proof import accounts, budget_rules, flow_rules, limit_rules, overlap_rules, tick_rules, unique_rules
from faultline_proof.accounts import ENDINGS, Case, Grants, Story, token_of
from faultline_proof.faults import Fault, Limits, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from faultline_proof.history import Final, History, Operation
    from faultline_proof.reads.holdings import JobHeld


def check(history: History, final: Final, limits: Limits | None = None) -> list[Fault]:
    """Every broken promise. An empty list is what everyone wants to see."""
    case = Case(limits or Limits(), final.at)
    stories = accounts.told(history, final, case)
    faults = [fault for story in stories.values() for rule in RULES for fault in rule(story, case)]
    return [
        *faults,
        *_keys_name_one_job(stories, case),
        *flow_rules.check(history, final, case),
        *limit_rules.check(history, final, stories, case),
        *budget_rules.check(history, final, case),
        *tick_rules.check(final, case),
        *overlap_rules.check(final, stories, case),
        *unique_rules.check(stories, case),
    ]


def kept(story: Story, case: Case) -> Iterator[Fault]:
    # By an answer on the wire, or by what a client made of it for its caller, whatever was on the wire.
    acknowledged = [op for op in (*story.enqueues, *story.others) if op.outcome == "ok" and op.verb in ("enqueue", "saw")]
    if acknowledged and not story.rows and not (case.limits.pruned and _may_have_ended(story)):
        yield Fault(Rule.KEPT, story.job_id, "was acknowledged and is neither open nor in the ledger", (acknowledged[0],))


def _may_have_ended(story: Story) -> bool:
    return bool(story.completions) or any(op.verb in ("fail", "cancel", "reap") for op in (*story.writes, *story.others))


def once(story: Story, _: Case) -> Iterator[Fault]:
    entries = [row for row in story.rows if row.state == "succeeded"]
    if len(entries) > 1:
        yield Fault(Rule.ONCE, story.job_id, f"stands {len(entries)} times in the ledger")
    # By lease: one may complete its job again, since its first answer was lost.
    leases = {(op.token, op.owner): op for op in story.completions if op.outcome == "ok"}
    accepted = tuple(leases.values())
    if len(accepted) > 1:
        yield Fault(Rule.ONCE, story.job_id, "was completed by more than one lease", accepted)
    elif accepted and entries and not _is_of(accepted[0], entries[0]):
        told = f"was completed by one lease, and the ledger names token {entries[0].token} of {entries[0].owner}"
        yield Fault(Rule.ONCE, story.job_id, told, accepted)
    elif accepted and story.rows and not entries:
        yield Fault(Rule.ONCE, story.job_id, f"was completed, and it is {story.rows[0].state}", accepted)


def newest_token(story: Story, case: Case) -> Iterator[Fault]:
    if not story.writes and not story.grants:
        return
    grants = Grants(story.grants)
    for write in story.writes:
        newest = grants.newest_before(write.invoked_at)
        if newest is not None and token_of(newest) > token_of(write):
            told = f"accepted token {write.token} though token {newest.token} had been granted before"
            yield Fault(Rule.NEWEST_TOKEN, story.job_id, told, (newest, write))
            return
    yield from _granted_to_the_writer(story, case)
    done, last = story.done, grants.newest
    if done is not None and last is not None and token_of(last) > done.token:
        told = f"succeeded with token {done.token}, and token {last.token} was granted too"
        yield Fault(Rule.NEWEST_TOKEN, story.job_id, told, (last,))


def _granted_to_the_writer(story: Story, case: Case) -> Iterator[Fault]:
    owners: dict[int | None, set[str | None]] = defaultdict(set)
    for grant in story.grants:
        owners[grant.token].add(grant.owner)
    for write in story.writes:
        holders = owners.get(write.token)
        if holders is None and case.limits.whole and not case.unanswered & {write.owner, None}:
            yield Fault(Rule.NEWEST_TOKEN, story.job_id, f"accepted token {write.token}, granted to nobody", (write,))
            return
        if holders and write.owner is not None and not holders & {write.owner, None}:
            told = f"accepted a write by {write.owner}, to whom its token {write.token} was not granted"
            yield Fault(Rule.NEWEST_TOKEN, story.job_id, told, (write,))
            return


def tokens_grow(story: Story, _: Case) -> Iterator[Fault]:
    if not story.grants and not story.steps:
        return
    grants = Grants(story.grants)
    first: dict[int | None, Operation] = {}
    for grant in story.grants:
        twin = first.setdefault(grant.token, grant)
        # The lost answer to a claim is asked for by its owner: one lease, told twice.
        if twin is not grant and (twin.owner != grant.owner or twin.verb == grant.verb == "claim"):
            yield Fault(Rule.TOKENS_GROW, story.job_id, f"granted token {grant.token} twice", (twin, grant))
            return
        # Whoever asks what was granted to him does not say since when.
        earlier = grants.newest_before(grant.invoked_at) if grant.verb == "claim" else None
        if earlier is not None and token_of(earlier) > token_of(grant):
            told = f"granted token {grant.token} after token {earlier.token}"
            yield Fault(Rule.TOKENS_GROW, story.job_id, told, (earlier, grant))
            return
    row, newest = (story.rows[0] if story.rows else None), grants.newest
    if row is not None and row.state != "succeeded" and newest is not None and row.token < token_of(newest):
        told = f"holds token {row.token} though token {newest.token} was granted"
        yield Fault(Rule.TOKENS_GROW, story.job_id, told, (newest,))
    elif row is not None and any(step.token > row.token for step in story.steps):
        yield Fault(Rule.TOKENS_GROW, story.job_id, f"holds token {row.token}, and a step of it carries a greater one")


def effect_once(story: Story, case: Case) -> Iterator[Fault]:
    done, effects = story.done, story.effects
    if effects and done is None:
        if story.rows or not case.limits.pruned:
            state = story.rows[0].state if story.rows else "unknown to the database"
            yield Fault(Rule.EFFECT_ONCE, story.job_id, f"has an effect and is {state}")
    elif len(effects) > 1:
        yield Fault(Rule.EFFECT_ONCE, story.job_id, f"has {len(effects)} effects")
    elif done is not None and effects and effects[0].token not in (None, done.token):
        told = f"succeeded with token {done.token}, and its effect carries token {effects[0].token}"
        yield Fault(Rule.EFFECT_ONCE, story.job_id, told)
    elif done is not None and not effects and done.task in case.limits.effects_of:
        yield Fault(Rule.EFFECT_ONCE, story.job_id, "succeeded, and its effect is missing")


def legal_leases(story: Story, _: Case) -> Iterator[Fault]:
    """A lease ends once, and after that nothing is accepted from it."""
    endings: dict[tuple[int | None, str | None], Operation] = {}
    for operation in (*story.writes, *story.others):
        if operation.verb in ENDINGS:
            first = endings.setdefault((operation.token, operation.owner), operation)
            if first is not operation and not first.verb == operation.verb == "complete":
                yield Fault(Rule.LEGAL, story.job_id, "saw one lease end twice", (first, operation))
                return
    for write in story.writes:
        ending = endings.get((write.token, write.owner))
        if ending is not None and ending.verb == "complete" and write.verb == "renew":
            continue  # of what was completed under it: nothing is written, and it is no refusal
        if ending is not None and write.verb not in ENDINGS and ending.ended_at < write.invoked_at:
            yield Fault(Rule.LEGAL, story.job_id, "accepted a write by a lease that had ended", (ending, write))
            return
    for cancel in story.others:
        if cancel.verb == "cancel":
            # Only who was granted the job anew, after a retry, may write again.
            old = {grant.token for grant in story.grants if grant.ended_at < cancel.invoked_at}
            late = [write for write in story.writes if write.token in old and cancel.ended_at < write.invoked_at]
            if late:
                yield Fault(Rule.LEGAL, story.job_id, "accepted a write after it was cancelled", (cancel, late[0]))
                return


_OPEN = {"queued", "running", "failed", "cancelled"}
#: What each entry of the journal may change from, and into what.
_MOVES = {
    "attempt_failed": ({"running"}, {"queued", "failed"}),
    "lease_reaped": ({"running"}, {"queued", "failed"}),
    "cancelled": ({"queued", "running"}, {"cancelled"}),
    "retried": ({"failed", "cancelled"}, {"queued"}),
    "recovered": (_OPEN, {"queued", "failed", "cancelled"}),
    "reconciled": (_OPEN, {"succeeded"}),
    "expired": ({"queued"}, {"cancelled"}),
    "superseded": ({"queued"}, {"cancelled"}),
}


def legal_states(story: Story, case: Case) -> Iterator[Fault]:
    """Follow the job through the journal to its row. Between two entries it may be claimed, released and completed."""
    known, state, token = not (case.limits.pruned and story.journal), "queued", 0
    for entry in story.journal:
        if known:
            yield from _reach(story, (state, token), (entry.was, entry.token_was))
        before, after = _MOVES.get(entry.event, (set(), set()))
        if entry.was not in before or entry.state not in after:
            yield Fault(Rule.LEGAL, story.job_id, f"went from {entry.was} to {entry.state} by {entry.event}")
        known, state, token = True, entry.state, entry.token
    for row in story.rows[:1]:
        if state != "succeeded":  # by being reconciled: then the ledger is right, whatever its token
            yield from _reach(story, (state, token), (row.state, row.token))
        owned = row.owner is not None and row.state != "succeeded"
        if owned != (row.state == "running") or row.attempt > row.max_attempts:
            told = f"is {row.state} with owner {row.owner} in attempt {row.attempt} of {row.max_attempts}"
            yield Fault(Rule.LEGAL, story.job_id, told)


def _reach(story: Story, before: tuple[str, int], after: tuple[str, int]) -> Iterator[Fault]:
    (state, token), (next_state, next_token) = before, after
    told = f"was {state} with token {token} and then {next_state} with token {next_token}"
    if next_token < token:
        yield Fault(Rule.TOKENS_GROW, story.job_id, told)
    elif state == "queued":
        silently = next_state == "queued" or (next_state in ("running", "succeeded") and next_token > token)
        if not silently:
            yield Fault(Rule.LEGAL, story.job_id, f"{told}, and the journal does not say why")
    elif after != before:
        yield Fault(Rule.LEGAL, story.job_id, f"{told}, and the journal does not say why")


def asked_for(story: Story, case: Case) -> Iterator[Fault]:
    """What is there was asked for by somebody who was not refused, and stands there once."""
    if not story.rows:
        return
    if len({row.state for row in story.rows}) > 1:
        told = f"stands in the database as {' and as '.join(row.state for row in story.rows)}"
        yield Fault(Rule.ONE_TRUTH, story.job_id, told)
    if story.enqueues and all(enqueue.outcome == "failed" for enqueue in story.enqueues):
        yield Fault(Rule.ONE_TRUTH, story.job_id, "was refused, and it is there", tuple(story.enqueues))
    elif not story.enqueues and case.limits.whole and not case.nameless and not _is_made(story.rows[0], case):
        yield Fault(Rule.ONE_TRUTH, story.job_id, "was enqueued by nobody")
    done = story.done
    if done is not None:
        tries = [operation for operation in story.completions if _is_of(operation, done)]
        if tries and all(operation.outcome == "failed" for operation in tries):
            yield Fault(Rule.ONE_TRUTH, story.job_id, "is in the ledger by a completion that was refused", tuple(tries))
        elif not tries and case.limits.whole and not any(op.outcome == "ok" for op in story.completions):
            told = f"is in the ledger with token {done.token} of {done.owner}, and nobody completed it so"
            yield Fault(Rule.ONE_TRUTH, story.job_id, told)


def _is_made(row: JobHeld, case: Case) -> bool:
    """By a call of its parent, or by a schedule: see `flow_rules.spawn_once` and `tick_rules`."""
    return row.job_id in case.ticked or (row.flow_id is not None and row.flow_id != row.job_id)


def answered(story: Story, case: Case) -> Iterator[Fault]:
    """What was accepted, beside completions, is on record. Heartbeats, marks and progress leave no record."""
    if case.limits.pruned or not story.rows:
        return
    steps = {step.name for step in story.steps}
    entries = {(entry.event, entry.token) for entry in story.journal}
    events = {entry.event for entry in story.journal}
    for operation in (*story.writes, *story.others):
        match operation.verb:
            case "step":
                true = operation.detail in steps
            case "fail":
                true = bool(entries & {("attempt_failed", operation.token), ("cancelled", operation.token)})
            case "reap":
                true = ("lease_reaped", operation.token) in entries
            case "cancel":
                # It may have been cancelled before, by itself.
                true = not events.isdisjoint(("cancelled", "superseded", "expired"))
            case "retry":
                true = "retried" in events
            case "saw":
                true = operation.detail != "succeeded" or story.done is not None
            case _:
                continue
        if not true:
            told = f"has no record of a {operation.verb} that was answered; it is {story.rows[0].state}"
            yield Fault(Rule.ONE_TRUTH, story.job_id, told, (operation,))


def in_time(story: Story, case: Case) -> Iterator[Fault]:
    if case.limits.faults_stopped_at is None or not story.rows:
        return
    row = story.rows[0]
    since = max(case.limits.faults_stopped_at, row.created_at, row.due_at or 0.0)
    limit = case.limits.seconds_to_end(row)
    took = (case.at if row.finished_at is None else row.finished_at) - since
    if took > limit:
        told = f"was {row.state} {took:.1f} s after it could have run in peace; {limit:.1f} s were allowed"
        yield Fault(Rule.IN_TIME, story.job_id, told)


#: Of an error: the exception stands first, and then where it was raised.
_ERROR_SHOWN = 1000


def spared(story: Story, case: Case) -> Iterator[Fault]:
    """No failed statement, outage or wrong verdict on a living worker costs an attempt, so no innocent job fails by it."""
    count = case.limits.own_failures
    if count is None or not story.rows:
        return
    row, grants = story.rows[0], {grant.token: grant for grant in story.grants}
    reaps = {op.token: op for op in story.others if op.verb == "reap"}
    reaped = [entry.token for entry in story.journal if entry.event == "lease_reaped"]
    lost = sum(token not in grants or case.limits.was_lost(grants[token], reaps.get(token)) for token in reaped)
    own = count(row)
    # The attempt in which it succeeded or was cancelled, or runs now, is used by nobody else.
    used = max(row.attempt, 1) if row.state == "failed" else row.attempt - (row.state != "queued")
    if used > own + lost:
        errors = [entry.error[:_ERROR_SHOWN] for entry in story.journal if entry.error is not None]
        told = (
            f"of task {row.task} is {row.state} and has used {used} of {row.max_attempts} attempts, though its task failed"
            f" {own} times and {lost} workers were lost; its errors: {' | '.join(errors) or 'none'}"
        )
        yield Fault(Rule.SPARED, story.job_id, told, tuple(op for op in story.writes if op.verb == "fail")[:3])


RULES: tuple[Callable[[Story, Case], Iterator[Fault]], ...] = (
    kept, once, newest_token, tokens_grow, effect_once, legal_leases, legal_states, asked_for, answered, in_time, spared,
)  # fmt: skip


def _keys_name_one_job(stories: dict[str, Story], case: Case) -> Iterator[Fault]:
    """Whoever asked with one key, however often, has got one job."""
    named: dict[str, dict[str, Operation | None]] = defaultdict(dict)
    for story in stories.values():
        for row in story.rows:
            if row.key is not None:
                named[row.key].setdefault(story.job_id, None)
        for enqueue in story.enqueues:
            if enqueue.key is not None and enqueue.outcome == "ok":
                named[enqueue.key][story.job_id] = enqueue
    for key, jobs in named.items() if not case.limits.pruned else ():
        if len(jobs) > 1:
            asked = tuple(operation for operation in jobs.values() if operation is not None)
            told = f"has the key {key}, and so has {', '.join(sorted(jobs)[1:])}"
            yield Fault(Rule.ONE_TRUTH, min(jobs), told, asked)


def _is_of(operation: Operation, row: JobHeld) -> bool:
    return operation.token == row.token and operation.owner in (None, row.owner)
