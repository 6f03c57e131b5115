"""What each system does by default when a worker is killed or comes back late. Read from documentation and sources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Safety:
    system: str
    version: str
    lease: str
    after_kill: str
    stale: str


TABLE = (
    Safety(
        "Faultline",
        "this build",
        "each job, 30 s, renewed; judged by the database's clock",
        "3 to 4 s (the worker's death is noticed); at the latest when the lease ends",
        "no: refused in the database, and recorded",
    ),
    Safety(
        "graphile-worker",
        "0.18",
        "a lock without renewal",
        "after 4 h",
        "yes: completes by `delete … where id`",
    ),
    Safety(
        "PgQueuer",
        "1.6",
        "a heartbeat of each job",
        "after 30 s without one",
        "yes: by id, and its heartbeat keeps the other's job",
    ),
    Safety(
        "pg-boss",
        "12.35",
        "an expiry of each job, 15 min; heartbeats if asked for",
        "after 15 min, when the monitor looks",
        "no for job objects (the attempt is compared); yes for plain ids",
    ),
    Safety("Awa", "0.6.9", "a heartbeat of each job", "after 90 s without one", "no: the run's lease is compared"),
    Safety(
        "Chancy",
        "0.26",
        "a heartbeat of the worker",
        "after 90 s without one, looked for every 60 s",
        "no: the claim's id is compared",
    ),
    Safety(
        "Procrastinate",
        "3.10",
        "a heartbeat of the worker (10 s)",
        "not by itself: a task of yours asks for stalled jobs and retries them",
        "yes: finishing checks the id and that it is not finished",
    ),
    Safety("Absurd", "0.5", "each run, 120 s", "after 120 s", "no: a run that was taken over cannot complete"),
    Safety(
        "DBOS",
        "3.3",
        "none",
        "when the same executor starts again; by another one only with its Conductor",
        "no: completion is fenced",
    ),
    Safety(
        "BullMQ",
        "6.7",
        "a lock of each job, 30 s, renewed; times are the client's",
        "30 to 60 s (stalled check)",
        "no for completion (token); yes for progress and logs",
    ),
    Safety(
        "SAQ",
        "0.26",
        "a timeout of each job, 10 s",
        "not at its default of one try: the sweep, every 60 s, aborts it; after the timeout if it has tries left",
        "yes",
    ),
    Safety("Taskiq (Redis streams)", "0.13", "idle time of the message", "after 10 min idle", "yes: acknowledges by id"),
    Safety(
        "Dramatiq (Redis)",
        "2.2",
        "a heartbeat of the worker",
        "after 60 s, by maintenance at random",
        "yes: acknowledges by id",
    ),
    Safety("arq", "0.28", "a key that expires", "after its job timeout + 10 s (310 s)", "yes"),
    Safety("Huey (Redis)", "3.5", "none: the job is popped when read", "never: it is lost", "there is nothing to commit"),
    Safety(
        "Celery (Redis)",
        "5.7",
        "visibility timeout of what was prefetched",
        "what ran is lost (acknowledged early); what was prefetched after 1 h",
        "yes",
    ),
    Safety(
        "RQ",
        "2.12",
        "an expiry in the registry of started jobs, renewed by heartbeats",
        "it is failed by the cleanup, and retried only if it was enqueued with retries",
        "yes",
    ),
)


def markdown() -> str:
    head = "| system | version | what guards a running job | after `kill -9` it runs again | may a stale worker finish it? |"
    rows = [f"| {row.system} | {row.version} | {row.lease} | {row.after_kill} | {row.stale} |" for row in TABLE]
    return "\n".join([head, "|---|---|---|---|---|", *rows])
