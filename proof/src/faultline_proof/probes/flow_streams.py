"""Streams: who may write, what a later attempt replaces, and where they end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from faultline.store import verbs
from faultline.store.verbs import flow, streams
from faultline.store.verbs.streams import Position
from faultline_proof.probes.probe import expect, probe, reasons, refused

if TYPE_CHECKING:
    from uuid import UUID

    from faultline.core.model import Lease
    from faultline_proof.sessions import Session, Sessions


def _write(q: Session, lease: Lease, at: int, *items: str, **reach: int) -> list[str]:
    """`reach`: by branch, "_" for the program and "_2" for branch 2."""
    where = {branch[1:]: made for branch, made in (reach or {"_": 0}).items()}
    return reasons(q.run(streams.stream(lease, "tokens", at, f"[{','.join(items)}]", json.dumps(where))))


def _read(q: Session, job_id: UUID, behind: Position = Position()) -> list[tuple[int, list[int]]]:  # noqa: B008
    found = q.run(streams.chunks(job_id, "tokens", behind))
    return [(chunk.position, chunk.items) for chunk in found.chunks]


@probe("stream", "chunks")
def a_stream_is_read_in_the_order_in_which_it_was_written(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    expect("nothing yet", _read(q, lease.job_id), [])
    for _ in range(2):  # the second time is one whose answer was lost
        expect("first", _write(q, lease, 0, "1", "2"), [])
    expect("next", _write(q, lease, 2, "3"), [])
    expect("again, after the next", _write(q, lease, 0, "1", "2"), [])
    expect("read", _read(q, lease.job_id), [(0, [1, 2]), (2, [3])])
    expect("what is behind", _read(q, lease.job_id, Position(lease.fencing_token, 0)), [(2, [3])])
    expect("other streams", q.run(streams.chunks(lease.job_id, "other")).chunks, [])


@probe("stream", "lock_lease", "refuse")
def nobody_writes_to_a_stream_without_the_lease(sessions: Sessions) -> None:
    q = sessions.open()
    old = q.new_lease()
    _write(q, old, 0, "1")
    q.fail(old)
    expect("of nobody", _write(q, old, 1, "2"), ["lease_lost"])
    new = q.claim_one()
    expect("of another", _write(q, old, 1, "2"), ["token_mismatch"])
    expect("read", _read(q, new.job_id), [(0, [1])])
    expect("on record", q.refusals(new.job_id), [("stream", "lease_lost"), ("stream", "token_mismatch")])


@probe("stream", "streams")
def a_new_attempt_begins_anew_when_it_writes(sessions: Sessions) -> None:
    q = sessions.open()
    old = q.new_lease()
    _write(q, old, 0, "1", "2")
    q.fail(old)
    new = q.claim_one()
    expect("before it writes", _read(q, new.job_id), [(0, [1, 2])])
    _write(q, new, 0, "3")
    _write(q, new, 1, "4")
    expect("who reads from the beginning", _read(q, new.job_id), [(0, [3]), (1, [4])])
    expect("who had read on", _read(q, new.job_id, Position(old.fencing_token, 0)), [(0, [3]), (1, [4])])


@probe("stream", "streams")
def what_was_written_before_the_last_call_on_record_is_kept(sessions: Sessions) -> None:
    q = sessions.open()
    old = q.new_lease()
    _write(q, old, 0, "1", "2")
    q.run(flow.record(old, [{"number": "1", "kind": "step", "name": "s", "outcome": "done", "result": 1}]))
    _write(q, old, 2, "3", _=1)
    q.fail(old)
    new = q.claim_one()
    _write(q, new, 0, "4", _=1)
    _write(q, new, 1, "5", _=1)
    expect("from the beginning", _read(q, new.job_id), [(0, [1, 2]), (2, [4]), (3, [5])])
    expect("who had read on", _read(q, new.job_id, Position(old.fencing_token, 2)), [(2, [4]), (3, [5])])


@probe("stream", "keep_written", "streams")
def of_each_branch_and_step_is_kept_what_it_does_not_write_again(sessions: Sessions) -> None:
    """Branch 1 has made a call since, branch 2 has not, branch 4 has ended; of the steps 5 and 6 one has ended."""
    q = sessions.open()
    old = q.new_lease()
    _write(q, old, 0, "10", _=9, _1=0)
    _write(q, old, 1, "20", _=9, _2=1)
    _write(q, old, 2, "40", "41", _=9, _4=1)
    _write(q, old, 4, "50", _=9, _5=999)
    _write(q, old, 5, "60", _=9, _6=999)
    _write(q, old, 6, "70", _=9, _7=999)
    _write(q, old, 7, "11", _=9, _1=1)
    _write(q, old, 8, "85", _=9, _8=999)
    begun: dict[str, Any] = {"kind": "step", "name": "s"}
    step = {**begun, "outcome": "done"}
    ends = {"kind": "patch", "name": "end of the branch", "outcome": "done", "result": {"after": 1}}
    rows = {"1.1": step, "2.1": step, "4.1": step, "4.0.0": ends, "5": step, "6": begun, "8": begun, "2.0.9": ends}
    q.run(flow.record(old, [{"number": number, **call} for number, call in rows.items()]))
    other = q.run(streams.stream(old, "other", 0, "[0]", '{"": 1}'))
    for position in (1, 2):
        q.run(streams.stream(old, "other", position, "[0]", '{"": 1}'))
    q.fail(old)
    new = q.claim_one()
    q.run(flow.record(new, [{"number": "7", "kind": "race", "name": "race", "outcome": "done", "result": {"winner": 0}}]))
    beside = (
        "insert into faultline.calls (job_id, number, kind, name, fencing_token, begun_at, ended_at, outcome, doubtful)"
        " values (%s, %s, %s, 's', 1, now(), now(), 'done', %s)"
    )
    sessions.hand.execute(beside, new.job_id, "2.7", "step", True)
    sessions.hand.execute(beside, new.job_id, "2.8", "retry", None)
    # One that this attempt has run again, and that wrote nothing this time.
    q.run(flow.record(new, [{"number": "6", **step}]))
    _write(q, new, 0, "80", _=10)
    _write(q, new, 1, "81", _=10)
    expect(
        "from the beginning", _read(q, new.job_id), [(0, [10]), (1, [40, 41]), (3, [50]), (4, [70]), (5, [80]), (6, [81])]
    )
    expect("who had read on", _read(q, new.job_id, Position(old.fencing_token, 7))[0], (1, [40, 41]))
    size = "select max(bytes) = sum(octet_length(chunk::text)) from faultline.streams where name = 'tokens'"
    expect("size", q.value(size), True)
    expect("the other stream", (reasons(other), len(q.run(streams.chunks(new.job_id, "other")).chunks)), ([], 3))
    q.fail(new)
    last = q.claim_one()
    q.run(flow.record(last, [{"number": "10", **step}]))
    _write(q, last, 0, "90", _=10)
    expect("the next attempt", _read(q, new.job_id)[-2:], [(4, [70]), (5, [90])])


@probe("stream")
def a_stream_has_no_holes_and_an_end(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    for at, items in ((1, "[1]"), (0, "[]"), (0, "{}"), (-1, "[1]")):
        with refused(q, "FL005", what=f"{items} at {at}"):
            q.run(streams.stream(lease, "tokens", at, items))
    with refused(q, "FL005", "1 to 200", what="no name"):
        q.run(streams.stream(lease, "", 0, "[1]"))
    _write(q, lease, 0, "1")
    with refused(q, "FL005", "missing", what="a hole"):
        q.run(streams.stream(lease, "tokens", 2, "[1]"))
    large = '"' + "x" * (8 * 1024 * 1024) + '"'
    _write(q, lease, 1, large)
    with refused(q, "FL007", "16 MiB", what="a stream that is too long"):
        q.run(streams.stream(lease, "tokens", 2, f"[{large}]"))
    expect("what fits", _write(q, lease, 2, "2"), [])


@probe("chunks")
def a_reader_learns_from_one_look_whether_more_can_come(sessions: Sessions) -> None:
    q = sessions.open()
    lease = q.new_lease()
    _write(q, lease, 0, "1")
    found = q.run(streams.chunks(lease.job_id, "tokens"))
    expect("running", (found.has_ended, found.queue), (False, "default"))
    q.complete(lease)
    found = q.run(streams.chunks(lease.job_id, "tokens", Position(lease.fencing_token, 0)))
    expect("ended", (found.has_ended, found.chunks), (True, []))


@probe("chunks")
def a_reader_gets_no_more_than_it_asked_for_and_of_one_job_only(sessions: Sessions) -> None:
    q = sessions.open()
    lease, other = q.new_lease(), q.new_lease()
    _write(q, other, 0, "0")
    sessions.hand.execute(
        "insert into faultline.streams select %s, 'tokens', 1, n, '[1]', 3, 0, '{}', now() from generate_series(0, 1001) n",
        lease.job_id,
    )
    rows = "select array_agg(position) from faultline.chunks(%s, 'tokens', 1, 2, %s)"
    expect("two", q.value(rows, lease.job_id, 2), [3, 4])
    expect("at least one", q.value(rows, lease.job_id, 0), [3])
    expect(
        "at most a thousand",
        len(q.value("select array_agg(position) from faultline.chunks(%s, 'tokens', -1, -1, 5000)", lease.job_id)),
        1000,
    )
    expect("of the other", _read(q, other.job_id), [(0, [0])])


@probe("prune", "streams", "forget_steps")
def the_streams_of_a_job_are_pruned_with_it(sessions: Sessions) -> None:
    q = sessions.open()
    done, failed = q.new_lease(), q.new_lease()
    for lease in (done, failed):
        _write(q, lease, 0, "1")
    q.complete(done)
    q.fail(failed, then="fail")
    for what in ("ledger", "failed"):
        expect(what, q.run(verbs.prune(what, older_than_seconds=0)), 1)
    expect("rows left", q.value("select count(*) from faultline.streams"), 0)
    with refused(q, "FL002", what="a deletion by hand"):
        lease = q.new_lease()
        _write(q, lease, 0, "1")
        q.execute("delete from faultline.streams")
