"""Commands about jobs: what they print for people and for programs, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from faultline import Faultline, JobFailed
from faultline.core.model import JobState
from faultline.store import verbs
from tests.cli.commands import FAULTLINE, environment, faultline
from tests.worker.working import results

if TYPE_CHECKING:
    from tests.driver import Clock, Driver

NOBODY = "0198c2e4-5d3a-7b11-9f60-2a54c0de7f01"


def test_a_job_is_shown_however_deeply_its_arguments_are_nested(queue: Driver, dsn: str) -> None:
    args = '{"x": %s}' % ("[" * 900 + "]" * 900)
    job_id = queue.value("select faultline.enqueue('t', %s::text)", args)

    shown = faultline("job", str(job_id), "--json", "--dsn", dsn)

    assert json.loads(shown.stdout)["args"] == args


def test_enqueue_prints_the_id_of_a_job_with_everything_that_was_said(queue: Driver, dsn: str) -> None:
    made = faultline(
        "enqueue", "charge", '{"order_id": 42}', "--queue", "pay", "--delay", "1h30m", "--priority", "-5",
        "--key", "order:42", "--max-attempts", "3", "--dsn", dsn,
    )  # fmt: skip

    job = queue.job(UUID(made.stdout.strip()))
    assert (job.task, job.args, job.queue, job.priority) == ("charge", {"order_id": 42}, "pay", -5)
    assert (job.idempotency_key, job.max_attempts) == ("order:42", 3)
    assert job.next_run_at is not None
    assert 5300 < (job.next_run_at - job.created_at).total_seconds() <= 5400


def test_enqueue_with_a_known_key_names_the_same_job(dsn: str) -> None:
    first = faultline("enqueue", "t", "--key", "k", "--dsn", dsn)
    second = faultline("enqueue", "t", "--key", "k", "--dsn", dsn, "--json")

    assert json.loads(second.stdout) == {"id": first.stdout.strip(), "created": False}


def test_enqueue_may_be_unique_and_expire(queue: Driver, dsn: str) -> None:
    words = ("enqueue", "t", "--unique-key", "doc:7", "--debounce", "5s", "--at-most", "1m", "--expires", "1h", "--dsn", dsn)
    first, second = faultline(*words), faultline(*words)

    assert first.stdout == second.stdout
    assert "a job with its unique key exists already" in second.stderr
    job = queue.job(UUID(first.stdout.strip()))
    assert job.unique_key == "doc:7"
    assert job.expires_at is not None
    shown = faultline("job", str(job.id), "--dsn", dsn).stdout
    assert re.search(r"unique +doc:7", shown)
    assert re.search(r"expires +", shown)
    for wrong in (["--at-most", "5s"], ["--unique", "always"], ["--debounce", "5s", "--delay", "3s"]):
        assert faultline("enqueue", "t", *wrong, "--dsn", dsn).returncode != 0


def test_enqueue_reads_arguments_from_standard_input(queue: Driver, dsn: str) -> None:
    made = subprocess.run(
        [FAULTLINE, "enqueue", "t", "-", "--dsn", dsn],
        input='{"text": "from a pipe"}', capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip

    assert queue.job(UUID(made.stdout.strip())).args == {"text": "from a pipe"}


def test_a_job_is_shown_with_its_epochs_and_the_writes_that_were_refused(queue: Driver, clock: Clock, dsn: str) -> None:
    job_id = queue.enqueue("charge", {"order_id": 42})
    stale = queue.claim_one(worker="frozen")
    clock.advance(31)
    queue.reap()
    second = queue.claim_one(worker="second")
    clock.advance(1)
    queue.fail(second, error="Refused: no cover\nTraceback")
    last = queue.claim_one(worker="third")
    clock.advance(2)
    queue.complete(stale)
    queue.complete(last, result={"paid": True})

    shown = faultline("job", str(job_id), "--dsn", dsn).stdout
    told = json.loads(faultline("job", str(job_id), "--dsn", dsn, "--json").stdout)

    lines = shown.splitlines()
    assert lines[0] == "charge  in queue default  succeeded"
    assert "ledger    1 row, by token 3" in lines
    frozen = next(number for number, line in enumerate(lines) if stale.owner in line)
    assert "├" in lines[frozen]
    assert lines[frozen].endswith("reaped after 31 s")
    assert lines[frozen].index("✗") > lines[frozen].index("┤")
    assert "complete refused: token_mismatch, the token is 3" in lines[frozen + 2]
    assert "Refused: no cover" in shown
    assert any(line.endswith("●  succeeded after 2.0 s") for line in lines)
    assert '{"order_id": 42}' in shown
    assert '{"paid": true}' in shown
    assert [(epoch["token"], epoch["end"]) for epoch in told["epochs"]] == [(1, "reaped"), (2, "failed"), (3, "succeeded")]
    assert told["epochs"][0]["refusals"][0]["reason"] == "token_mismatch"
    assert (told["ledger_rows"], told["result"]) == (1, {"paid": True})


def test_a_job_that_was_given_back_is_not_said_to_have_been_held_by_nobody(queue: Driver, dsn: str) -> None:
    fresh, job_id = queue.enqueue("t", queue="other"), queue.enqueue("t")
    queue.release(queue.claim_one())

    assert "No worker has claimed it yet." in faultline("job", str(fresh), "--dsn", dsn).stdout
    assert "Nobody" not in (shown := faultline("job", str(job_id), "--dsn", dsn).stdout)
    assert "A worker took it under token 1" in shown

    queue.fail(queue.claim_one(), error="boom")
    assert "It was held" not in faultline("job", str(job_id), "--dsn", dsn).stdout
    queue.release(queue.claim_one())
    assert "A worker took it under token 3" in faultline("job", str(job_id), "--dsn", dsn).stdout


def test_a_job_is_shown_with_the_steps_that_are_done_and_long_results_cut_short(queue: Driver, dsn: str) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()
    queue.run(verbs.step(lease, "quote", {"price": 5}))
    queue.run(verbs.step(lease, "fetch", "x" * 5000))

    lines = faultline("job", str(job_id), "--dsn", dsn).stdout.splitlines()
    told = json.loads(faultline("job", str(job_id), "--dsn", dsn, "--json").stdout)

    first = next(number for number, line in enumerate(lines) if line.split() == ["step", "token", "done", "result"])
    assert lines[first + 1].split()[:2] == ["quote", "1"]
    assert lines[first + 1].rstrip().endswith('ago  {"price": 5}')
    assert lines[first + 2].startswith("fetch")
    assert "… 5,002 bytes" in " ".join(lines[first + 2 : first + 5])
    assert "x" * 100 not in "".join(lines)
    assert [(step["name"], len(str(step["result"]))) for step in told["steps"]] == [("quote", 12), ("fetch", 5000)]


def test_a_job_is_told_in_words_where_there_is_no_room_for_lanes(queue: Driver, dsn: str) -> None:
    job_id = queue.enqueue()
    lease = queue.claim_one()

    shown = faultline("job", str(job_id), "--dsn", dsn, COLUMNS="50").stdout

    assert "├" not in shown
    assert f"{lease.owner:5}  running for" in shown


def test_colours_are_for_terminals(queue: Driver, dsn: str) -> None:
    job_id = queue.enqueue()

    assert "\x1b[" not in faultline("job", str(job_id), "--dsn", dsn).stdout
    assert "\x1b[" in faultline("job", str(job_id), "--dsn", dsn, FORCE_COLOR="1").stdout


def test_what_others_wrote_cannot_command_the_terminal(queue: Driver, dsn: str) -> None:
    """A title, a cleared screen, a line that is read backwards: in every field that a client may choose."""
    hostile = "a\x1b[2J\x1b]0;owned\x07\x9b2J\u202eb"
    job_id = queue.enqueue(hostile, {hostile: hostile}, idempotency_key=hostile, max_attempts=1)
    # As somebody with rights on the table could do it: such a name is refused.
    queue.connection.execute("update faultline.open_jobs set queue = %s", (hostile,))
    lease = queue.claim_one(queue=hostile)
    with queue.connection.transaction():
        queue.connection.execute("select faultline.set_current_verb('step')")
        queue.connection.execute(
            "insert into faultline.steps (job_id, name, fencing_token, recorded_at, result) values (%s, %s, %s, now(), %s)",
            (lease.job_id, hostile, lease.fencing_token, Jsonb(hostile)),
        )
    queue.fail(lease, then="fail", error=hostile)

    for words in (("jobs",), ("job", str(job_id)), ("queues",), ("retry", "--failed")):
        shown = faultline(*words, "--dsn", dsn)
        assert "a\ufffd[2J" in shown.stdout, words
        assert not set(shown.stdout) & set("\x1b\x07\x9b\u202e"), words


def test_why_a_job_was_cancelled_is_a_reason_and_no_error(queue: Driver, dsn: str) -> None:
    job_id = queue.enqueue()
    queue.run(verbs.cancel(job_id, "not wanted"))

    shown = faultline("job", str(job_id), "--dsn", dsn).stdout

    assert "last error" not in shown
    assert "reason\ncancelled: not wanted\n" in shown


def test_one_job_that_cannot_be_cancelled_does_not_spare_the_others(queue: Driver, dsn: str) -> None:
    done, waiting = queue.enqueue(), queue.enqueue(queue="other")
    queue.complete(queue.claim_one())

    asked = faultline("cancel", str(done), str(waiting), "--reason", "no longer wanted", "--dsn", dsn)

    assert asked.returncode == 1
    assert asked.stdout == f"{waiting} cancelled\n"
    assert asked.stderr.startswith(f"faultline: job {done} has succeeded and cannot be cancelled")
    assert queue.job(waiting).last_error == "cancelled: no longer wanted"


def test_retry_takes_ids(queue: Driver, dsn: str) -> None:
    job_id = queue.enqueue()
    queue.fail(queue.claim_one(), then="fail")

    assert faultline("retry", str(job_id), "--dsn", dsn).stdout == f"{job_id} queued\n"


def test_failed_jobs_are_shown_before_they_are_retried_and_only_with_a_yes(queue: Driver, dsn: str) -> None:
    jobs = {name: queue.enqueue(name) for name in ("charge", "mail")}
    for lease in queue.claim():
        queue.fail(lease, then="fail", error=f"{lease.task.upper()} went wrong\nand this is the rest")
    shown = faultline("retry", "--failed", "--dsn", dsn)
    assert (shown.returncode, shown.stderr) == (1, "faultline: nothing was retried: add --yes to retry them\n")
    assert "CHARGE went wrong" in shown.stdout
    assert "the rest" not in shown.stdout
    assert {queue.state(job) for job in jobs.values()} == {JobState.FAILED}

    done = faultline("retry", "--failed", "--error", "CHARGE", "--yes", "--dsn", dsn)

    assert done.stdout.endswith("requeued: 1\n")
    assert (queue.state(jobs["charge"]), queue.state(jobs["mail"])) == (JobState.QUEUED, JobState.FAILED)


def test_jobs_that_match_are_counted_before_they_are_cancelled_and_only_with_a_yes(queue: Driver, dsn: str) -> None:
    held = queue.enqueue("charge", queue="pay")
    lease = queue.claim_one(queue="pay")
    waiting, other = queue.enqueue("charge", queue="pay"), queue.enqueue("mail")
    counted, shown = (faultline("cancel", "--queue", "pay", *words, "--dsn", dsn) for words in (["--dry-run"], []))
    assert (counted.returncode, counted.stdout) == (0, "matching: 1 queued, 1 running\n")
    assert (shown.returncode, shown.stdout) == (1, counted.stdout)
    assert shown.stderr == "faultline: nothing was cancelled: add --yes to cancel them\n"
    assert faultline("cancel", "--group", "none", "--yes", "--dsn", dsn).stdout == "no jobs match\n"
    assert {queue.state(job) for job in (held, waiting, other)} == {JobState.QUEUED, JobState.RUNNING}

    done = faultline("cancel", "--queue", "pay", "--task", "charge", "--yes", "--reason", "wrong", "--dsn", dsn)

    assert done.stdout.endswith("cancelled: 2\n")
    assert [queue.state(job) for job in (held, waiting, other)] == ["cancelled", "cancelled", "queued"]
    assert queue.job(waiting).last_error == "cancelled: wrong"
    assert queue.complete(lease).stale


def test_what_to_cancel_is_given_by_ids_or_by_options(dsn: str) -> None:
    for words in ((), ("0198c2e4", "--queue", "mail"), ("--yes",), ("0198c2e4", "--dry-run")):
        refused = faultline("cancel", *words, "--dsn", dsn)
        assert refused.returncode != 0
        assert "give job ids, or select jobs with --queue, --task, --group or --state" in refused.stderr
    ended = faultline("cancel", "--state", "failed", "--yes", "--dsn", dsn)
    assert "a job that has failed cannot be cancelled" in ended.stderr


def test_jobs_are_listed_by_what_is_asked_for(queue: Driver, dsn: str) -> None:
    failed, waiting = queue.enqueue("charge", queue="pay", idempotency_key="order:42"), queue.enqueue("mail")
    queue.fail(queue.claim_one(queue="pay"), then="fail", error="no cover")

    def ids(*words: str) -> list[str]:
        lines = faultline("jobs", "--json", *words, FAULTLINE_DSN=dsn).stdout.splitlines()
        return [json.loads(line)["id"] for line in lines]

    assert ids() == [str(waiting), str(failed)]
    assert ids("--state", "failed", "--queue", "pay", "--task", "charge") == [str(failed)]
    assert ids("--key", "order:42") == [str(failed)]
    assert ids("--older", "1h") == []
    assert ids("--younger", "1h", "--queue", "default") == [str(waiting)]
    shown = faultline("jobs", FAULTLINE_DSN=dsn).stdout.splitlines()
    assert shown[2].split()[:4] == [str(failed), "failed", "pay", "charge"]
    assert shown[2].rstrip().endswith("no cover")


@pytest.mark.parametrize("words", [(), ("--state", "queued", "--queue", "default"), ("--state", "failed")])
def test_pages_of_jobs_follow_each_other(queue: Driver, dsn: str, words: tuple[str, ...]) -> None:
    made = {str(queue.enqueue()) for _ in range(5)}
    if "failed" in words:
        for lease in queue.claim():
            queue.fail(lease, then="fail")

    seen: list[str] = []
    asked: list[str] = ["faultline", "jobs", "--json", "--limit", "2", *words]
    for _ in range(3):
        page = faultline(*asked[1:], FAULTLINE_DSN=dsn)
        seen += [json.loads(line)["id"] for line in page.stdout.splitlines()]
        asked = shlex.split(page.stderr.removeprefix("more: "))

    assert asked == []
    assert len(seen) == 5
    assert set(seen) == made


def test_the_command_for_the_next_page_has_every_option_and_no_password(queue: Driver, dsn: str) -> None:
    for _ in range(2):
        queue.enqueue("it's", queue="a b")
    named = f"{dsn} password=secret"

    page = faultline("jobs", "--queue", "a b", "--task", "it's", "--younger", "1h", "--limit", "1", "--dsn", named)

    words = shlex.split(page.stderr.removeprefix("more: "))
    assert words[:-1] == [
        "faultline", "jobs", "--queue", "a b", "--task", "it's", "--younger", "1h", "--limit", "1",
        "--dsn", f"{dsn} password=***", "--after",
    ]  # fmt: skip


def test_a_place_of_another_list_is_refused(dsn: str) -> None:
    asked = faultline("jobs", "--state", "failed", "--after", NOBODY, FAULTLINE_DSN=dsn)

    assert asked.returncode == 2
    assert asked.stderr.startswith(f"faultline: invalid cursor {NOBODY} for this list")


def test_a_reader_that_has_read_enough_ends_it_quietly(queue: Driver, dsn: str) -> None:
    queue.connection.execute("select faultline.enqueue('a-task-with-quite-a-name') from generate_series(1, 1000)")

    listed = subprocess.Popen(
        [FAULTLINE, "jobs", "--limit", "1000", "--json", "--dsn", dsn],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    assert listed.stdout is not None
    assert listed.stderr is not None
    with listed:
        assert listed.stdout.readline().startswith('{"id": ')
        listed.stdout.close()

        assert listed.stderr.read() == ""


def test_an_id_is_never_cut_however_narrow_the_screen(queue: Driver, dsn: str) -> None:
    job_id = queue.enqueue("a-task-with-a-long-name", queue="a-queue-with-a-long-name")
    queue.fail(queue.claim_one(queue="a-queue-with-a-long-name"), then="fail", error="a long story " * 20)

    shown = faultline("jobs", FAULTLINE_DSN=dsn, COLUMNS="40").stdout

    assert str(job_id) in shown
    assert "a-task-with-a-long-name" in shown
    assert "…" in shown


def test_the_error_that_the_help_names_is_the_one_that_a_timeout_leaves(app: Faultline, queue: Driver, dsn: str) -> None:
    @app.task(timeout=0.05, max_attempts=1)
    async def charge() -> None:
        await asyncio.sleep(60)

    handle = charge.enqueue()
    assert isinstance(results(app, [handle])[0], JobFailed)
    (words,) = re.findall(r"faultline (retry --failed --task charge .*)", faultline("retry", "--help").stdout)

    faultline(*words.rstrip("│ ").split(), "--yes", "--dsn", dsn)

    assert queue.state(handle.id) is JobState.QUEUED


def waits_for(job_id: UUID, dsn: str) -> str:
    told = json.loads(faultline("job", str(job_id), "--json", "--dsn", dsn).stdout)
    shown = faultline("job", str(job_id), "--dsn", dsn).stdout
    if told["waits_for"]:
        assert f"waits for {told['waits_for'].partition('(')[0]}" in " ".join(shown.split())
    else:
        assert "waits for " not in shown
    return str(told["waits_for"])


def live(queue: Driver, name: str, queues: str, tasks: str | None, leases: int = 0) -> None:
    queue.execute(
        "insert into faultline.workers"
        " (id, started_at, heartbeat_at, watched, pid, host, version, queues, sleeping, leases, tasks)"
        " values (%s, faultline.now(), faultline.clock() + interval '1 hour', true,"
        " 1, 'host', '1', %s::text[], '{}', %s, %s::text[])",
        name, queues, leases, tasks,
    )  # fmt: skip


def test_a_job_that_does_not_start_says_what_it_waits_for(queue: Driver, dsn: str) -> None:
    job_id = queue.enqueue("send", queue="mail")

    assert waits_for(job_id, dsn) == "a worker: none is alive"
    live(queue, "elsewhere", "{other}", "{send}")
    assert waits_for(job_id, dsn) == "a worker of its queue: 1 worker lives, none serves mail"
    live(queue, "here", "{mail,other}", "{pay}")
    assert waits_for(job_id, dsn) == "a worker that knows the task send: 1 worker serves its queue, none knows it"
    live(queue, "busy", "{mail}", "{send}", leases=10)
    assert waits_for(job_id, dsn) == "a free slot: 2 workers serve its queue, with 10 jobs in hand"
    queue.run(verbs.pause("mail", "the provider\nis down"))
    waits = waits_for(job_id, dsn)
    assert waits.startswith("its queue to be resumed (paused ")
    assert waits.endswith(": the provider is down)")


def test_a_job_that_is_not_due_waits_for_nobody_unless_no_worker_knows_its_task(queue: Driver, dsn: str) -> None:
    later = queue.enqueue("send", queue="mail", delay_seconds=3600)

    assert waits_for(later, dsn) == ""
    live(queue, "here", "{mail}", "{pay}")
    assert "none knows it" in waits_for(later, dsn)
    live(queue, "new", "{mail}", None)  # it has just started, and has not said what it knows
    assert waits_for(later, dsn) == ""


def test_a_job_that_runs_waits_for_nobody(queue: Driver, dsn: str) -> None:
    job_id = queue.enqueue("send")
    queue.claim_one()

    assert waits_for(job_id, dsn) == ""
