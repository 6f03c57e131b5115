"""Commands about limits and groups."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from tests.cli.commands import faultline
from tests.limits.test_reads import claim, enqueue, limit

if TYPE_CHECKING:
    from tests.driver import Driver


def test_a_limit_is_set_shown_and_reset_with_who_and_why(queue: Driver, dsn: str) -> None:
    done = faultline("limits", "set", "mail", "--concurrency", "2", "--reason", "they asked", "--dsn", dsn)
    enqueue(queue, "mail", "a", 3)
    claim(queue, "mail", 5)
    shown, told = faultline("limits", "--dsn", dsn), faultline("limits", "mail", "--json", "--dsn", dsn)
    undone = faultline("limits", "reset", "mail", "--dsn", dsn)

    assert (done.returncode, undone.returncode) == (0, 0), done.stderr + undone.stderr
    assert shown.stdout.splitlines()[1].split()[:5] == ["mail", "2", "2", "-", "1"]
    assert "the queue" in shown.stdout
    assert "they asked" in shown.stdout
    found = json.loads(told.stdout)
    assert (found["queue"], found["holding"], found["limits"][0]["override"]) == ("mail", 2, {"concurrency": 2})
    assert "they asked" not in undone.stdout
    journal = queue.connection.execute("select detail ->> 'reason' from faultline.journal where event = 'limit_changed'")
    assert [row[0] for row in journal.fetchall()] == ["they asked", None]


def test_every_field_of_a_group_is_set(queue: Driver, dsn: str) -> None:
    words = "--group tenant-7 --rate 100 --per 1m --burst 10 --weight 2.5 --ordered"
    done = faultline("limits", "set", "mail", *words.split(), "--dsn", dsn)

    assert "one at a time, in order, 100/min (burst 10), weight 2.5" in done.stdout, done.stderr
    unlimited = faultline("limits", "set", "mail", "--group", "tenant-7", "--rate", "none", "--dsn", dsn)
    assert "one at a time, in order, weight 2.5" in unlimited.stdout
    assert "100/min" not in unlimited.stdout


def test_a_queue_that_no_worker_serves_is_noted(queue: Driver, dsn: str) -> None:
    queue.heartbeat("w")

    noted = faultline("limits", "set", "mial", "--concurrency", "2", "--dsn", dsn)
    served = faultline("limits", "set", "default", "--concurrency", "2", "--dsn", dsn)

    assert "note: no worker serves mial; they serve default" in noted.stderr
    assert served.stderr == ""


def test_a_reset_that_changes_nothing_says_so_and_what_to_do(queue: Driver, dsn: str) -> None:
    spec = '{"queue": {"concurrency": 20}, "each_group": {"ordered": true}}'
    queue.execute("select faultline.declare_queue('letters', %s)", spec)
    faultline("limits", "set", "mail", "--group", "tenant-7", "--concurrency", "1", "--dsn", dsn)

    declared = faultline("limits", "reset", "letters", "--dsn", dsn)
    ordered = faultline("limits", "reset", "letters", "--group", "*", "--dsn", dsn)
    elsewhere = faultline("limits", "reset", "mail", "--dsn", dsn)
    undone = faultline("limits", "reset", "mail", "--group", "tenant-7", "--dsn", dsn)

    lift = "it stays as the code declares it. To lift that: faultline limits set letters"
    assert f"note: nothing was set for the queue letters; {lift} --concurrency none\n" in declared.stderr
    assert f"note: nothing was set for each group of letters; {lift} --group '*' --unordered\n" in ordered.stderr
    assert "note: nothing was set for the queue mail; something is set for tenant-7\n" in elsewhere.stderr
    assert undone.stderr == ""
    for printed in (declared, ordered):
        _, words = printed.stderr.strip().split("To lift that: faultline ")
        assert faultline(*shlex.split(words), "--dsn", dsn).returncode == 0


def test_what_makes_no_sense_is_refused(dsn: str) -> None:
    for words, said in {
        "--concurrency 0": "to stop a queue, pause it",
        "--concurrency many": "write a number, or none",
        "--rate -1": "must be from 0.001",
        "--rate 100/m": "the time of a rate is apart: --rate 100 --per 1m",
        "--per 5s": "give --rate too",
        "--weight 2": "weight and ordered are for groups",
        "": "nothing to set",
        f"--group {'g' * 10_000} --concurrency 1": "at most 200",
    }.items():
        refused = faultline("limits", "set", "mail", *words.split(), "--dsn", dsn)
        assert refused.returncode != 0, words
        assert said in refused.stderr, (words, refused.stderr)


def test_a_queue_without_limits_says_so(dsn: str) -> None:
    assert "mail has no limits" in faultline("limits", "mail", "--dsn", dsn).stdout
    assert "No queue has limits" in faultline("limits", "--dsn", dsn).stdout
    assert faultline("groups", "mail", "--dsn", dsn).stdout == "no group of mail waits or holds a permit\n"


def test_groups_are_shown_page_by_page(queue: Driver, dsn: str) -> None:
    limit(queue, "mail", "*", concurrency=1)
    for name in ("a", "b", "c/1"):
        enqueue(queue, "mail", name, 2)
    claim(queue, "mail", 1)

    first = faultline("groups", "mail", "--limit", "2", "--dsn", dsn)
    cursor = first.stderr.rsplit("--after ", 1)[1].strip().strip("'")
    second = faultline("groups", "mail", "--limit", "2", "--after", cursor, "--json", "--dsn", dsn)

    assert [line.split()[0] for line in first.stdout.splitlines()[1:]] == ["a", "b"]
    assert "full: 1 at once" in first.stdout
    assert [json.loads(line)["group"] for line in second.stdout.splitlines()] == ["c/1"]
    assert faultline("groups", "mail", "--after", "x", "--dsn", dsn).returncode == 2


def test_a_job_says_whether_it_holds_a_permit_or_waits_for_one(queue: Driver, dsn: str) -> None:
    limit(queue, "mail", "*", concurrency=1)
    enqueue(queue, "mail", "a", 2)
    [held] = claim(queue, "mail", 5)
    row = queue.connection.execute("select id from faultline.open_jobs where in_group").fetchone()
    assert row is not None

    holder, waiter = (faultline("job", str(job), "--dsn", dsn).stdout for job in (held[0], row[0]))
    listed = faultline("jobs", "--group", "a", "--state", "queued", "--queue", "mail", "--dsn", dsn).stdout

    assert "holds a permit of its queue and its group" in holder
    assert f"waits for a permit of its group (job {held[0]} holds it)" in " ".join(waiter.split())
    assert "9999" not in waiter
    assert "waits in group a" in listed


def test_a_flow_whose_sleep_is_over_says_that_it_waits_for_a_rate(queue: Driver, dsn: str) -> None:
    limit(queue, "mail", "", rate=1, per=3600, burst=1)
    enqueue(queue, "mail", None)
    [held] = claim(queue, "mail", 1)
    sleep = '[[{"number": "1", "kind": "sleep", "name": "sleep", "seconds": 0.001}]]'
    lease = (held[0], held[1], queue.value("select lease_owner from faultline.open_jobs"), sleep)
    suspend = "select faultline.suspend(array[%s::uuid], array[%s::bigint], array[%s], %s::jsonb)"
    queue.connection.execute(suspend, lease)

    said = faultline("job", str(held[0]), "--dsn", dsn).stdout

    assert "waits for the rate of the queue: 1/h (burst 1)" in said
    assert "until its sleep is over" not in said
    assert "\ndue " in said


def test_a_job_is_enqueued_with_a_group(queue: Driver, dsn: str) -> None:
    done = faultline("enqueue", "t", "{}", "--queue", "mail", "--group", "a", "--dsn", dsn)
    refused = faultline("enqueue", "t", "{}", "--group", "g" * 10_000, "--dsn", dsn)

    assert done.returncode == 0, done.stderr
    assert queue.connection.execute("select group_key from faultline.jobs").fetchall() == [("a",)]
    assert refused.returncode != 0


def test_a_budget_is_set_shown_and_reset(dsn: str) -> None:
    words = "openai --rate 600 --per 1m --burst 50 --reason asked"
    done = faultline("limits", "set-budget", *words.split(), "--dsn", dsn)
    told = json.loads(faultline("limits", "--json", "--dsn", dsn).stdout)
    undone = faultline("limits", "reset-budget", "openai", "--dsn", dsn)

    assert done.stdout.splitlines()[-1].split()[:3] == ["openai", "50.0", "-"], done.stdout + done.stderr
    assert "600/min (burst 50)" in done.stdout
    assert "asked" in done.stdout
    assert (told["budget"], told["tokens"]) == ("openai", 50)
    assert undone.stdout == "budget openai is removed: no code declares it\n"
    unknown = faultline("limits", "reset-budget", "opneai", "--dsn", dsn)
    assert (unknown.returncode, "there is no budget opneai" in unknown.stderr) == (1, True), unknown.stderr
    refused = faultline("limits", "set-budget", "openai", "--rate", "none", "--dsn", dsn)
    assert "must have a rate" in refused.stderr, refused.stderr


def test_a_full_queue_without_groups_is_named_and_its_jobs_wait(queue: Driver, dsn: str) -> None:
    queue.execute("select faultline.set_limit('one', '', '{\"concurrency\": 1}')")
    queue.enqueue(queue="one")
    queue.enqueue(queue="one")
    queue.claim_one(queue="one")

    shown = faultline("limits", "--dsn", dsn).stdout.splitlines()
    found = faultline("doctor", "--dsn", dsn).stdout

    assert next(line.split() for line in shown if line.startswith("one"))[:7] == ["one", "1", "1", "-", "1", "0", "1"]
    assert "one is full: 1 permit is held, 1 job waits" in " ".join(found.split())
