"""The primary is lost. What a synchronous standby makes of it, and one that lagged behind: two futures of the same past."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from faultline.core.model import JobState, Submission
from faultline.store import verbs
from faultline.store.reads import views
from faultline_proof.drill import Drill
from faultline_proof.drills.servers import expect_all_done_once
from faultline_proof.postgres import Postgres
from faultline_proof.proxy import Proxy
from faultline_proof.submitter import Submitter

if TYPE_CHECKING:
    from uuid import UUID

    from faultline_proof.stage import Actor, Stage

#: Jobs acknowledged before the lagging standby loses its wire, after that, and after the first standby was promoted.
SUBMITTED = 50

#: Jobs that each worker runs while the standby is promoted, and how long each takes.
HELD_EACH, RUN_SECONDS = 3, 15

#: Servers die here, machines do not.
_SETTINGS = {"fsync": "off"}


@dataclass(frozen=True, slots=True)
class Servers:
    primary: Postgres
    synchronous: Postgres
    lagging: Postgres
    #: Between the primary and the lagging standby.
    wire: Proxy


@dataclass(frozen=True, slots=True)
class Past:
    """What had happened when the primary died."""

    acknowledged: list[UUID]
    #: How many of them were acknowledged when the lagging standby had surely seen them, and when it was surely cut off.
    seen: int
    cut: int
    #: A job that a worker has run on the primary, and not completed yet.
    held: UUID
    holder: Actor


def failover(stage: Stage) -> None:
    servers = _start(stage)
    stage.make_effects()
    worker = stage.worker("W", dsn=either(servers.primary, servers.synchronous))
    with Submitter(either(servers.primary, servers.synchronous), stage.host()) as client:
        past = _lose_the_primary(stage, servers, client)
        servers.synchronous.promote()
        stage.note("promoted", standby="synchronous")
        stage.move_to(servers.synchronous.dsn)
        known = len(client.acknowledged)
        stage.wait_for(lambda: len(client.acknowledged) >= known + SUBMITTED, "the client goes on by itself")
    stage.wait_for(lambda: stage.app.database.run(views.is_drained("default")), "the worker goes on by itself")
    stage.verdict.expect("the worker is still the same process", worker.alive, wanted=True)
    expect_all_done_once(stage, client.acknowledged)
    stage.expect_sound()
    highest = stage.value("select max(fencing_token) from faultline.jobs")

    servers.lagging.promote()
    stage.note("promoted", standby="lagging")
    stage.move_to(servers.lagging.dsn)
    _expect_the_loss_to_be_known(stage, past)
    _expect_the_old_holder_to_be_refused(stage, past)
    _expect_tokens_above(stage, highest)
    stage.expect_sound(unjudged="what clients saw before the failover is lost here: the drill itself says what of it")


def standby_first(stage: Stage) -> None:
    primary = stage.keep(Postgres(stage.folder / "primary", settings=_SETTINGS))
    standby = stage.keep(Postgres(stage.folder / "standby", copy_of=primary.dsn, settings=_SETTINGS))
    stage.move_to(primary.dsn)
    stage.app.enqueue_many([Submission("nothing")] * SUBMITTED)
    written = stage.value("select pg_current_wal_insert_lsn()::text")
    replayed = "select replay_lsn >= %s::pg_lsn from pg_stat_replication"
    stage.wait_for(lambda: bool(stage.value(replayed, written)), "the standby has the jobs")
    primary.kill()
    worker = stage.worker("A", dsn=standby.dsn)
    stage.wait_for(lambda: worker.saw("database_unavailable"), "the worker has met a server without writes")
    stage.verdict.took_effect("a server that accepts no writes")
    standby.promote()
    stage.note("promoted", standby="standby")
    stage.move_to(standby.dsn)
    stage.faults_are_over()
    stage.wait_for(lambda: stage.app.database.run(views.is_drained("default")), "the worker goes on by itself")
    stage.wait_for(lambda: stage.workers() == 1, "its heart beats again")
    stage.verdict.expect("jobs in the ledger", stage.app.database.run(views.counts())["succeeded"], SUBMITTED)
    stage.expect_sound()


def live_workers(stage: Stage) -> None:
    """Their sessions, and the locks by which a dead worker is known, ended with the primary. They themselves did not."""
    primary, standby = synchronous_pair(stage)
    workers = [stage.worker(name, queues=[f"default={HELD_EACH}"], dsn=either(primary, standby)) for name in "ABCD"]
    words = f'{{"seconds": {RUN_SECONDS}}}'
    # Of each kind, async and blocking, half have one attempt only.
    tasks = ("wait", "wait_in_thread")
    numbers = range(HELD_EACH * len(workers))
    jobs = [Submission(tasks[n // 2 % 2], words, max_attempts=1 + n % 2) for n in numbers]
    placed = [place.id for place in stage.app.enqueue_many(jobs)]
    running = "select count(*) from faultline.open_jobs where state = 'running'"
    stage.wait_for(lambda: bool(stage.value(running) == len(placed)), "all jobs run")
    stage.wait_for(lambda: stage.workers() == len(workers), "all workers are on the list")
    late = workers[2:]
    for worker in late:
        worker.signal(signal.SIGSTOP)
    primary.kill()
    standby.promote()
    stage.note("promoted", standby="synchronous", late=",".join(worker.name for worker in late))
    stage.move_to(standby.dsn)
    promoted_at = stage.value("select clock_timestamp()")
    back = "select count(*) from faultline.workers where heartbeat_at > %s::timestamptz + interval '5 seconds'"
    # By then those that are back have reaped several times, and have been connected long enough to judge others.
    stage.wait_for(lambda: bool(stage.value(back, promoted_at) == len(workers) - len(late)), "A and B are back")
    for worker in late:
        worker.signal(signal.SIGCONT)
    stage.verdict.took_effect("promotion of a standby while jobs ran")
    stage.faults_are_over()
    stage.wait_for_end(*placed)
    stage.verdict.expect("leases taken back or refused", stage.rows("select event, owner from faultline.journal"), [])
    done = stage.rows("select fencing_token, count(*) from faultline.ledger where job_id = any(%s) group by 1", placed)
    stage.verdict.expect("jobs that succeeded, by token", done, [(1, len(placed))])
    stage.expect_sound()


def synchronous_pair(stage: Stage) -> tuple[Postgres, Postgres]:
    """A primary, on which the drill plays on, and a standby that has all that is acknowledged."""
    primary = stage.keep(Postgres(stage.folder / "primary", settings=_SETTINGS))
    stage.move_to(primary.dsn)
    near = make_conninfo(primary.dsn, application_name="synchronous")
    standby = stage.keep(Postgres(stage.folder / "standby", copy_of=near, settings=_SETTINGS))
    stage.execute("alter system set synchronous_standby_names = 'synchronous'")
    stage.execute("select pg_reload_conf()")
    follows = "select count(*) from pg_stat_replication where state = 'streaming' and sync_state = 'sync'"
    stage.wait_for(lambda: bool(stage.value(follows)), "the standby follows")
    return primary, standby


def _start(stage: Stage) -> Servers:
    primary = stage.keep(Postgres(stage.folder / "primary", settings=_SETTINGS))
    stage.move_to(primary.dsn)
    wire = stage.keep(Proxy(primary.dsn, tell=stage.note))
    near = make_conninfo(primary.dsn, application_name="synchronous")
    far = make_conninfo(wire.dsn, application_name="lagging")
    synchronous = stage.keep(Postgres(stage.folder / "synchronous", copy_of=near, settings=_SETTINGS))
    lagging = stage.keep(Postgres(stage.folder / "lagging", copy_of=far, settings=_SETTINGS))
    stage.execute("alter system set synchronous_standby_names = 'synchronous'")
    stage.execute("select pg_reload_conf()")
    followers = "select count(*) from pg_stat_replication where state = 'streaming' and sync_state = %s"
    stage.wait_for(lambda: [stage.value(followers, how) for how in ("sync", "async")] == [1, 1], "both standbys follow")
    return Servers(primary, synchronous, lagging, wire)


def either(first: Postgres, second: Postgres) -> str:
    """Whichever of the two can be written to: how clients find the new primary."""
    hosts = [str(conninfo_to_dict(server.dsn)["host"]) for server in (first, second)]
    return make_conninfo(first.dsn, host=",".join(hosts), target_session_attrs="read-write")


def _lose_the_primary(stage: Stage, servers: Servers, client: Submitter) -> Past:
    held, _ = stage.app.enqueue_many([Submission("nothing", queue="held"), Submission("nothing", queue="not served")])
    stage.wait_for(lambda: len(client.acknowledged) >= SUBMITTED, "work is going on")
    seen = len(client.acknowledged)
    written = stage.value("select pg_current_wal_insert_lsn()::text")
    replayed = "select replay_lsn >= %s::pg_lsn from pg_stat_replication where application_name = 'lagging'"
    stage.wait_for(lambda: bool(stage.value(replayed, written)), "the lagging standby has seen that")
    servers.wire.close()
    known = len(client.acknowledged)
    # What was under way at that moment may have got through; what comes after its acknowledgement did not.
    stage.wait_for(lambda: len(client.acknowledged) > known, "the client goes on")
    cut = len(client.acknowledged)
    stage.note("standby_cut_off", standby="lagging", acknowledged=cut)
    # It runs the job and stops itself just before it would say so.
    holder = stage.worker(
        "A", queues=["held=1"], dsn=either(servers.primary, servers.lagging), faults=["before_complete_sent=stop"]
    )
    stage.wait_for(lambda: holder.saw("fault_took_effect"), "A has run the job")
    stage.wait_for(lambda: len(client.acknowledged) >= cut + SUBMITTED, "work goes on without the lagging standby")
    servers.primary.kill()
    past = Past(list(client.acknowledged), seen, cut, held.id, holder)
    stage.note("primary_killed", signal="SIGKILL", acknowledged=len(past.acknowledged))
    stage.verdict.took_effect("SIGKILL of the primary under load")
    return past


def _expect_the_loss_to_be_known(stage: Stage, past: Past) -> None:
    """Who remembers what it was told can name what is gone."""
    _, there = stage.app.database.run(views.final_states(past.acknowledged))
    lost = [job_id for job_id in past.acknowledged if job_id not in there]
    stage.note("acknowledged_jobs_lost", jobs=len(lost), first=lost[0] if lost else None)
    if lost:
        stage.verdict.took_effect("promotion of a standby that lacked acknowledged jobs")
    stage.verdict.holds("acknowledged jobs that the lagging standby never got", len(lost), holds=len(lost) > 0)
    stage.verdict.expect("lost though it had seen them", [job for job in lost if job in past.acknowledged[: past.seen]], [])
    found = [job for job in past.acknowledged[past.cut :] if job in there]
    stage.verdict.expect("there though it cannot have seen them", found, [])


def _expect_the_old_holder_to_be_refused(stage: Stage, past: Past) -> None:
    """The new history grants the same token once more. The owner, new with every claim, tells the two holders apart."""
    with stage.barrier("A has come back"):
        other = stage.worker("B", queues=["held=1"], once=True, faults=["before_complete_sent=barrier:A has come back"])
        stage.wait_for_arrival("A has come back")
        tokens = [
            next(event["token"] for event in actor.events() if event["event"] == "lease_acquired")
            for actor in (past.holder, other)
        ]
        past.holder.signal(signal.SIGCONT)
        tried = ("stale_write_blocked", "job_completed")
        stage.wait_for(lambda: any(past.holder.saw(event) for event in tried), "A has tried to write")
        stage.verdict.expect("state after A came back", stage.app.job(past.held).state, JobState.RUNNING)
    other.wait()
    job = stage.app.job(past.held)
    workers = {actor.name: _worker_id(actor) for actor in (past.holder, other)}
    stage.verdict.expect("tokens granted in the two histories", tokens, [1, 1])
    # A renewal that A or its companion sends meanwhile may be refused as well.
    refused = [refusal for refusal in stage.refusals(past.held) if refusal != ("renew", "token_mismatch")]
    stage.verdict.expect("writes refused and on record", refused, [("complete", "token_mismatch")])
    owner = [name for name, worker_id in workers.items() if (job.owner or "").startswith(worker_id)]
    stage.verdict.expect("whose completion stands in the ledger", owner, ["B"])


def _worker_id(actor: Actor) -> str:
    return str(next(event["worker"] for event in actor.events() if event["event"] == "worker_started"))


def _expect_tokens_above(stage: Stage, highest: int) -> None:
    """For systems outside that compare tokens: after `faultline recover` every new one is above any of the lost history."""
    lifted_to, _, _ = stage.app.database.run(verbs.recover())
    stage.note("recovered", lifted_to=lifted_to)
    leases = stage.app.database.run(verbs.claim("default", owner="after-recover/1", max_jobs=1))
    stage.app.database.run(verbs.release(leases))
    lowest = min((lease.fencing_token for lease in leases), default=0)
    stage.verdict.holds("token granted after `recover`", lowest, holds=lowest > max(lifted_to, highest))


DRILLS = (
    Drill(
        "failover",
        "the primary dies under load, and a synchronous or a lagging standby takes over",
        failover,
    ),
    Drill(
        "live-workers",
        "a standby is promoted while jobs run; some of their workers come back late",
        live_workers,
    ),
    Drill("standby-first", "workers reach a standby before it is promoted", standby_first),
)
