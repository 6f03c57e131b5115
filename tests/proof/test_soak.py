"""A soak in miniature, and that its judge would notice: a soak that cannot fail is ten minutes of warm air."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID
from xml.etree import ElementTree as ET

import psycopg
import pytest

from faultline import Faultline, embedded
from faultline.store import verbs
from faultline.store.database import Database
from faultline.store.verbs import budget
from faultline.worker.companion.process import is_stopped
from faultline_proof.mutants import Cut
from faultline_proof.soak import flows, limits, schedules, tasks
from faultline_proof.soak.judge import LOST, OTHERS, TWICE, judge
from faultline_proof.soak.producer import Record
from faultline_proof.soak.trouble import KINDS
from faultline_proof.tape import Recording
from tests.driver import Driver
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.long

PATIENCE = 300.0


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "faultline", "soak", *words]


def environment(folder: Path) -> dict[str, str]:
    """The soak makes its folder in the system's folder for temporary files: one that can be looked through afterwards."""
    return {**os.environ, "TMPDIR": str(folder)}


def test_nothing_is_lost_or_done_twice_under_every_kind_of_fault(tmp_path: Path) -> None:
    as_json, as_page, temporary = tmp_path / "soak.json", tmp_path / "soak.html", tmp_path / "temporary"
    temporary.mkdir()
    words = ["--minutes", "0.14", "--workers", "2", "--json", str(as_json), "--html", str(as_page)]

    ran = subprocess.run(
        command(*words), capture_output=True, text=True, check=False, timeout=PATIENCE, env=environment(temporary)
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("soak: passed")
    report = json.loads(as_json.read_text())
    assert all(report["faults"].get(kind, 0) >= 1 for kind in KINDS), report["faults"]
    assert report["acknowledged"] > 500
    assert report["flows"] > 10, "flows wait, have children and receive signals through all of it"
    assert report["ticks"] > 10, "schedules tick through all of it"
    assert report["looks"] > 20, "and somebody looks at the limited queue"
    assert report["most_at_once"] > 1
    assert report["recoveries"], "jobs of a killed worker were run again"
    assert sum(report["refusals"].values()) == report["stale_writes_refused"]
    assert report["operations"] > 3 * report["acknowledged"], "each was at least enqueued, claimed and completed"
    assert f"{report['operations']:,}" in as_page.read_text()
    page = ET.fromstring(as_page.read_text().partition("\n")[2])  # noqa: S314 - our own page
    assert page.findtext(".//span[@class='verdict held']") == "passed"
    assert "http" not in as_page.read_text().replace("http-equiv", "")
    assert list(temporary.iterdir()) == []


def test_an_interrupted_soak_leaves_no_process_behind_and_says_what_it_found(tmp_path: Path) -> None:
    with begun(tmp_path) as (process, folder):
        assert len(started_for(folder)) >= 3, "a server and two workers"

        process.send_signal(signal.SIGINT)
        said, complaints = process.communicate(timeout=PATIENCE)

    assert process.returncode == 130, complaints
    assert said.startswith("soak: interrupted, nothing broken so far")
    assert "acknowledged jobs lost: 0" in said
    assert "Traceback" not in complaints
    assert started_for(folder) == []
    assert list(tmp_path.iterdir()) == []


def test_workers_end_with_a_soak_that_was_killed(tmp_path: Path) -> None:
    with begun(tmp_path) as (process, folder):
        process.kill()

        until(lambda: not started_for(folder))
        embedded.destroy(folder)


def test_a_worker_that_is_frozen_ends_with_a_soak_that_was_killed(dsn: str, tmp_path: Path) -> None:
    program = f"""
import pathlib, time
from faultline_proof.soak.crew import Crew
crew = Crew({dsn!r}, 1, pathlib.Path({str(tmp_path)!r}), pathlib.Path({str(tmp_path)!r}))
crew.freeze(crew.members[0], 600)
print(crew.members[0].pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        until(lambda: is_stopped(worker))

        process.kill()

    try:
        until(lambda: str(tmp_path) not in command_line(worker))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


@contextlib.contextmanager
def begun(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A soak that has told how far it has come, so that all its processes are started, and its folder."""
    process = subprocess.Popen(
        command("--minutes", "5", "--workers", "2"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(temporary),
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        assert " of 5:00  acknowledged" in process.stderr.readline()
        (folder,) = temporary.iterdir()
        yield process, folder
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def started_for(folder: Path) -> list[str]:
    """The command lines of all living processes of one soak: its workers and its server name its folder, or its place."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [words for words in map(command_line, pids) if folder.name[:24] in words]


def command_line(pid: int) -> str:
    """Of one that is gone: nothing."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Scene:
    """A few jobs, some of them done, on tape."""

    def __init__(self, dsn: str, recording: Recording, tape: Path) -> None:
        self.record = Record()
        self.tape = tape
        self.recording = recording
        self.database = Database(dsn)
        self.queue = Driver(recording.connect(dsn, autocommit=True))
        #: What no verb does.
        self.hand = psycopg.connect(dsn, autocommit=True)
        self.hand.execute(tasks.EFFECTS.encode())
        self.hand.execute(flows.MARKS)
        self.hand.execute("set session_replication_role = replica")

    def add(self, number: int, task: str = "nothing", *, done: bool = True, effects: int = 0) -> UUID:
        job_id = self.queue.enqueue(task, {"n": number})
        self.recording.saw([job_id], "queued")
        if done:
            lease = self.queue.claim_one()
            for _ in range(effects):
                self.hand.execute("insert into soak_effects values (%s, %s)", (job_id, lease.fencing_token))
            self.queue.complete(lease)
        return job_id

    def broken(self, *, over: bool = True, **known: Any) -> dict[str, str]:
        judged = judge(self.database, [self.tape], self.record, over=over, **known)
        return {check.claim: str(check.found) for check in judged.checks if not check.holds}

    def close(self) -> None:
        self.database.close()
        self.queue.connection.close()
        self.hand.close()


@pytest.fixture
def scene(dsn: str, tmp_path: Path) -> Iterator[Scene]:
    with (
        Recording.to(tmp_path / "tape", "scene") as recording,
        contextlib.closing(Scene(dsn, recording, tmp_path / "tape")) as made,
    ):
        yield made


def test_the_judge_is_content_with_what_was_promised(scene: Scene) -> None:
    scene.add(1)
    scene.add(2, "effect", effects=1)
    scene.record.absent.append(3)

    judged = judge(scene.database, [scene.tape], scene.record, over=True, calm_at=0.0)

    assert [check.claim for check in judged.checks if not check.holds] == []
    assert (judged.acknowledged, judged.operations) == (2, 10)


def test_the_judge_misses_what_was_acknowledged_and_is_nowhere(scene: Scene) -> None:
    scene.add(1)
    job_id = scene.add(7)
    scene.hand.execute("delete from faultline.ledger where job_id = %s", (job_id,))

    assert list(scene.broken()) == list(scene.broken(over=False)) == [LOST]
    assert str(job_id) in scene.broken()[LOST]


def test_the_judge_misses_what_is_still_open_when_all_is_said_to_be_over(scene: Scene) -> None:
    job_id = scene.add(1, done=False)

    assert scene.broken() == {"jobs that are not over": f"1 ({job_id} (nothing, queued))"}
    assert scene.broken(over=False) == {}


def test_the_judge_sees_that_a_job_did_not_end_in_time(scene: Scene) -> None:
    scene.add(1, done=False)
    hour_ago = "now() - interval '1 hour'"
    scene.hand.execute(f"update faultline.open_jobs set created_at = {hour_ago}, next_run_at = {hour_ago}".encode())

    assert scene.broken(over=False) == {}
    assert "s were allowed" in scene.broken(over=False, calm_at=1.0)[OTHERS]


@pytest.mark.parametrize("effects", [0, 2])
def test_the_judge_sees_an_effect_that_is_missing_or_there_twice(scene: Scene, effects: int) -> None:
    scene.add(1, "effect", effects=effects)

    assert list(scene.broken()) == [TWICE]


def test_the_judge_sees_a_protocol_that_does_not_fence(scene: Scene) -> None:
    unfenced = Cut("complete", "compares", "j.fencing_token = l.token and j.lease_owner = l.owner", "true").mutant()
    scene.hand.execute(unfenced.sql.encode())
    scene.queue.enqueue("nothing", {"n": 1})
    stale = scene.queue.claim_one()
    scene.queue.release(stale)
    scene.queue.claim_one()

    scene.queue.complete(stale)

    assert "accepted token 1 though token 2 had been granted before" in scene.broken()[OTHERS]


def test_the_judge_sees_what_was_said_not_to_be_there(scene: Scene) -> None:
    scene.add(1)
    scene.record.absent.append(1)

    assert scene.broken() == {"jobs that were not there when asked for, and are there": "1 (1)"}


def test_the_judge_misses_what_the_producer_has_got_though_nothing_was_on_the_wire(scene: Scene) -> None:
    scene.recording.saw([UUID(int=7)], "queued")

    assert list(scene.broken()) == [LOST]


def test_the_judge_sees_two_jobs_where_one_was_submitted(scene: Scene) -> None:
    scene.add(1)
    scene.add(1)

    assert scene.broken() == {"submissions that became two jobs": "1 (1)"}


def test_the_judge_sees_a_result_that_is_not_that_of_the_steps(scene: Scene) -> None:
    job_id = scene.add(1, "walk")  # done without a step

    assert scene.broken() == {"jobs whose result differs from their steps": f"1 ({job_id})"}


def registered() -> Faultline:
    app = Faultline()
    tasks.register(app)
    return app


def limited(scene: Scene, *groups: str) -> list[UUID]:
    """Jobs of these groups in the limited queue, as its workers declare it."""
    app = registered()
    for declaration in app.declarations():
        scene.queue.run(declaration)
    jobs = [app.tasks["serve"].bind(n=number, tenant=group, seconds=0) for number, group in enumerate(groups, start=1)]
    return [placed.job_id for placed in scene.queue.run(verbs.enqueue_many(jobs))]


def test_the_judge_is_content_with_limits_that_are_kept(scene: Scene) -> None:
    limited(scene, *["a"] * limits.GROUP_MAX)
    leases = scene.queue.claim(queue=limits.QUEUE)

    assert len(leases) == limits.GROUP_MAX
    scene.queue.complete(*leases)
    assert scene.broken() == {}


def test_the_judge_sees_a_claim_that_grants_more_than_a_group_may(scene: Scene) -> None:
    unlimited = Cut("list_ready_groups", "keeps within the group's limit", "l.cap - g.holding, ", "").mutant()
    scene.hand.execute(unlimited.sql.encode())
    limited(scene, *["a"] * (limits.GROUP_MAX + 1))

    scene.queue.complete(*scene.queue.claim(queue=limits.QUEUE))

    assert "where 3 may run" in scene.broken()[OTHERS]


def test_the_judge_sees_what_was_seen_to_run_beyond_a_limit(scene: Scene) -> None:
    looks = limits.Looks()
    looks.judge(Counter({"a": limits.GROUP_MAX, limits.STRICT: 1}))
    assert looks.exceeded == []

    looks.judge(Counter({"a": 1, limits.STRICT: 2}))
    looks.judge(Counter(dict.fromkeys("abc", 3)))

    assert scene.broken(looks=looks) == {"limits exceeded when looked at": "2 (2 of strict, 9 of the queue)"}


def taken(scene: Scene, cost: float) -> None:
    """Jobs that take so much of the budget, one after the other, as fast as they can."""
    for declaration in registered().budget_declarations().values():
        scene.queue.run(declaration)
    for _ in range(3):
        lease = scene.queue.new_lease()
        scene.queue.run(budget.take_budget(lease, limits.BUDGET, cost, 1))
        scene.queue.complete(lease)


def test_the_judge_is_content_with_what_was_taken_from_a_budget(scene: Scene) -> None:
    taken(scene, 3)

    assert scene.broken() == {}


def test_the_judge_sees_that_more_was_taken_than_a_budget_had(scene: Scene) -> None:
    free = Cut("take_budget", "is free", "    bucket.tokens := bucket.tokens - take_budget.cost;\n", "").mutant()
    scene.hand.execute(free.sql.encode())
    taken(scene, 10)

    assert "took the last of" in scene.broken()[OTHERS]


def test_the_judge_misses_what_nobody_has_taken_from_a_budget(scene: Scene) -> None:
    taken(scene, 1)
    scene.hand.execute("update faultline.budgets set tokens = tokens - 4")

    assert "should hold" in scene.broken()[OTHERS]


def test_the_judge_misses_a_permit_that_did_not_come_back(scene: Scene) -> None:
    limited(scene, "a")
    scene.queue.complete(*scene.queue.claim(queue=limits.QUEUE))
    scene.queue.value("select faultline.maintain_limits()")
    scene.hand.execute("update faultline.groups set holding = 1")

    broken = scene.broken()

    assert "permits of the group a of the queue limited are given out" in broken[OTHERS]
    assert "holding=1" in broken["permits that did not come back"]
    assert "permits_are_counted" in broken["invariants broken"]


def ticked(scene: Scene, *moments: int) -> float:
    """The schedules of a soak, one of which has decided these moments. Returns when the first was."""
    for name in schedules.EVERY:
        spec = f'{{"every": {schedules.EVERY[name]}, "tick_arg": "at", "job": {{"task": "chime"}}}}'
        scene.queue.value("select faultline.set_schedule(%s, %s::json)", name, spec)
    begun = scene.queue.value("select date_trunc('second', faultline.clock())")
    for name, policy in schedules.OVERLAP.items():
        # So that there is a reason to skip what follows.
        for number in range(1 if policy == "skip" else 2):
            at = begun - timedelta(seconds=1 + number)
            ((job_id, _),) = scene.queue.run(verbs.enqueue_many([registered().tasks[schedules.TASK].bind(at=at)]))
            scene.queue.complete(scene.queue.claim_one())
            scene.hand.execute(
                "insert into faultline.ticks (schedule_id, at, kind, outcome, decided_at, job_id)"
                " select id, %s, 'manual', 'manual', %s, %s from faultline.schedules where name = %s",
                (at, at, job_id, name),
            )
    for name, seconds in schedules.EVERY.items():
        for moment in moments if name == "every second" else range(moments[-1] + 1):
            scene.hand.execute(
                "insert into faultline.ticks (schedule_id, at, kind, outcome, decided_at)"
                " select id, %s + %s * interval '1 second', 'tick', 'skipped', %s from faultline.schedules where name = %s",
                (begun, moment * seconds, begun, name),
            )
    return float(begun.timestamp())


def test_the_judge_misses_a_tick(scene: Scene) -> None:
    begun = ticked(scene, 0, 1, 2, 3)
    assert scene.broken(ticked_until=begun + 3.5) == {}
    assert "every second has decided nothing, not since" in scene.broken(ticked_until=begun + 9)[OTHERS]

    scene.hand.execute("delete from faultline.ticks where at = to_timestamp(%s)", (begun + 2,))

    assert "which has decided nothing between" in scene.broken(ticked_until=begun + 3.5)[OTHERS]


def test_the_judge_sees_a_job_that_names_another_tick(scene: Scene) -> None:
    begun = ticked(scene, 0)
    app = registered()
    job = app.tasks[schedules.TASK].bind(at=datetime.fromtimestamp(begun + 7, UTC))
    ((job_id, _),) = scene.queue.run(verbs.enqueue_many([job]))
    scene.queue.complete(scene.queue.claim_one())
    scene.hand.execute(
        "update faultline.ticks set outcome = 'fired', job_id = %s where schedule_id ="
        " (select id from faultline.schedules where name = 'every second')",
        (job_id,),
    )

    assert scene.broken() == {"jobs that name another tick than their own": f"1 ({job_id})"}
