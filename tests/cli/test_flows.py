"""Commands about flows: a tree, a signal, what waits."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from faultline import operate
from faultline.store import verbs
from faultline.store.reads import flows, views
from tests.cli.commands import faultline
from tests.flow.scenes import asked, begun, done, spawned, suspended

if TYPE_CHECKING:
    from tests.driver import Driver

NOBODY = "0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"


def test_a_flow_is_shown_as_a_tree(queue: Driver, dsn: str) -> None:
    lease = begun(queue)
    done(queue, lease, "1", result={"text": "…"}, tries=3)
    spawned(queue, lease, "2", 60)
    suspended(queue, lease, "3", name="approval")
    queue.complete(*queue.claim(10))

    shown = faultline("flow", str(lease.job_id), "--dsn", dsn)
    told = json.loads(faultline("flow", str(lease.job_id), "--dsn", dsn, "--json").stdout)

    lines = shown.stdout.splitlines()
    assert lines[0] == f"article  {lease.job_id}  waiting for the signal approval"
    assert lines[1].startswith("├─ 1  step draft  done")
    assert "3 tries" in lines[1]
    assert lines[2].startswith("├─ 2  children of part  begun  10 of 60 ended: 10 succeeded, 50 queued")
    assert lines[3] == "│     " + "■" * 10 + "·" * 50
    assert re.fullmatch(r"└─ 3  signal approval  waiting  for .+, until in 60 min", lines[4])
    assert told["children"][0]["cells"] == "s" * 10 + "q" * 50
    child = faultline("flow", str(queue.run(flows.tree(lease.job_id))[0][0].id), "--dsn", dsn)
    assert child.returncode == 0
    missing = faultline("flow", NOBODY, "--dsn", dsn)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith(f"faultline: no job {NOBODY}; it was never enqueued")


def test_a_child_names_its_parent(queue: Driver, dsn: str) -> None:
    lease = begun(queue)
    spawned(queue, lease, "1", 1)
    suspended(queue, lease, "1", kind="children", name="part")
    child = queue.claim_one()

    shown = faultline("flow", str(child.job_id), "--dsn", dsn).stdout.splitlines()

    assert shown[0] == f"called by article {lease.job_id}, call 1"
    assert shown[1] == f"of the flow {lease.job_id}"
    assert shown[2].startswith(f"part  {child.job_id}  running")


def test_a_signal_is_sent_with_its_payload_to_a_wait(queue: Driver, dsn: str) -> None:
    job_id = asked(queue, idempotency_key="order:42")

    sent = faultline("signal", str(job_id), "approval", '{"ok": true}', "--for", "1", "--key", "k", "--dsn", dsn)
    again = faultline("signal", "key:order:42", "approval", "--key", "k", "--dsn", dsn)

    (signal,) = queue.run(flows.signals([job_id]))
    assert (sent.stdout, sent.stderr, sent.returncode) == ("sent\n", "", 0)
    assert again.stdout == "a signal with the key k was sent before; nothing was sent\n"
    assert (signal.payload, signal.for_call, signal.sent_by) == ({"ok": True}, "1", operate.this_user())
    (entry,) = queue.run(views.journal(job_id))
    assert entry.event == "signalled"


def test_a_signal_that_cannot_be_sent_says_why(queue: Driver, dsn: str) -> None:
    ended = queue.new_lease()
    queue.complete(ended)
    job_id = asked(queue)

    no_json = faultline("signal", str(job_id), "approval", "yes", "--dsn", dsn)
    too_late = faultline("signal", str(ended.job_id), "approval", "--dsn", dsn)
    unknown = faultline("signal", "key:none", "approval", "--dsn", dsn)
    other = faultline("signal", str(job_id), "approval", "--for", "7", "--dsn", dsn)

    assert (no_json.returncode, "invalid JSON in the payload" in no_json.stderr) == (2, True)
    assert (too_late.returncode, "faultline: job" in too_late.stderr) == (1, True)
    assert unknown.stderr.startswith('faultline: no job has the idempotency key "none"')
    assert "has no call 7" in other.stderr
    assert queue.run(flows.signals([job_id])) == []


def test_what_waits_is_listed_with_a_command_for_the_next_page(queue: Driver, dsn: str) -> None:
    jobs = [str(asked(queue, name=f"a/{number}")) for number in range(3)]

    first = faultline("waiting", "--kind", "signal", "--limit", "2", "--dsn", dsn)
    cursor = re.search(r"--after '?([^\s']+ ?[^\s']*)'?$", first.stderr.strip())
    assert cursor is not None
    second = faultline("waiting", "--kind", "signal", "--limit", "2", "--dsn", dsn, "--after", cursor[1], "--json")

    assert [line.split()[0] for line in first.stdout.splitlines()[1:]] == jobs[:2]
    assert "for the signal a/0" in first.stdout
    assert json.loads(second.stdout)["job_id"] == jobs[2]
    assert second.stderr == ""
    assert faultline("waiting", "--kind", "sleep", "--dsn", dsn).stdout == "nothing waits for this\n"


def test_a_waiting_job_reads_as_waiting(queue: Driver, dsn: str) -> None:
    job_id = asked(queue)

    listed = faultline("jobs", "--dsn", dsn).stdout
    shown = faultline("job", str(job_id), "--dsn", dsn).stdout

    assert listed.splitlines()[1].split()[:2] == [str(job_id), "waiting"]
    assert shown.splitlines()[0] == "article  in queue default  waiting"
    assert f"waits     for the signal approval; token 1; see: faultline flow {job_id}" in shown
    assert "attempt   none of " in shown
    assert "does not record" not in shown


def test_a_changed_program_is_named_where_its_job_is_shown(queue: Driver, dsn: str) -> None:
    lease = begun(queue)
    done(queue, lease, "1")
    queue.run(verbs.program_changed(lease, "c", "the program has changed: call 2 is new. Bring the old code back"))
    queue.run(verbs.release([lease], [5.0]))

    shown = " ".join(faultline("job", str(lease.job_id), "--dsn", dsn).stdout.split())
    drawn = faultline("flow", str(lease.job_id), "--dsn", dsn).stdout

    assert "the program has changed: call 2 is new. Bring the old code back" in shown
    assert "It does not go on since" in shown
    assert "does not record" not in shown
    assert "does not go on: the program has changed: call 2 is new." in drawn


def test_a_signal_that_nothing_waits_for_yet_is_said_to_be_kept(queue: Driver, dsn: str) -> None:
    job_id = asked(queue, idempotency_key="order:42")

    other = faultline("signal", str(job_id), "later", "--dsn", dsn).stdout
    by_key = faultline("signal", "key:order:42", "approval", "--dsn", dsn).stdout

    assert (other, by_key) == ("kept; the job does not wait for it yet\n", "sent\n")


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_a_login_that_may_send_signals_need_not_read_waits(queue: Driver, dsn: str, role: str) -> None:
    job_id = asked(queue, idempotency_key="order:42")
    login = f"{dsn} options='-c role=faultline_{role}'"

    by_id = faultline("signal", str(job_id), "approval", "--dsn", login)
    by_key = faultline("signal", "key:order:42", "approval", "--dsn", login)

    assert (by_id.stdout, by_id.stderr) == ("sent\n", "")
    assert (by_key.stdout, by_key.stderr) == ("sent\n", "")


def test_the_doctor_tells_of_jobs_that_wait_and_of_wake_ups_that_are_late(queue: Driver, dsn: str) -> None:
    job_id = asked(queue)
    well = faultline("doctor", "--dsn", dsn).stdout
    queue.execute("select faultline.signal(%s, 'approval')", job_id)
    queue.execute("update faultline.nudges set at = at - interval '1 hour'")

    late = faultline("doctor", "--dsn", dsn).stdout

    assert "waiting: 1 for signal" in well
    assert "what a job waited for happened 60 min ago, and the job was not looked at" in " ".join(late.split())


def test_a_job_is_forked_from_a_call_on(queue: Driver, dsn: str) -> None:
    lease = begun(queue)
    done(queue, lease, "1")
    done(queue, lease, "2")

    forked = faultline("fork", str(lease.job_id), "--before", "2", "--args", '{"n": 2}', "--reason", "a look", "--dsn", dsn)
    told = json.loads(faultline("fork", str(lease.job_id), "--json", "--dsn", dsn).stdout)

    job_id = UUID(forked.stdout.strip())
    assert [call.number for call in queue.run(verbs.history(job_id))] == ["1"]
    assert queue.job(job_id).args == {"n": 2}
    (entry,) = queue.run(views.journal(job_id))
    assert (entry.event, entry.detail["from"], entry.detail["reason"]) == ("forked", str(lease.job_id), "a look")
    assert entry.detail["by"] == operate.this_user()
    assert told["forked_from"] == str(lease.job_id)
    assert len(queue.run(verbs.history(UUID(told["id"])))) == 2
    wrong = faultline("fork", str(lease.job_id), "--before", "9", "--dsn", dsn)
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "has no call 9" in wrong.stderr
