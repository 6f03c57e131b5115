"""What the workers of `tests.limits.stamped` run: a job that stamps when it begins and ends, on a session of its own.

So whoever judges the limits does not ask Faultline what was running.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import psycopg

from faultline import Faultline, Job, Limit

if TYPE_CHECKING:
    from collections.abc import Sequence

QUEUE, QUEUE_LIMIT, GROUP_LIMIT, GROUPS = "stamped", 12, 3, 12
#: Keeps its order.
STRICT = f"g{GROUPS - 1}"
LEASE_SECONDS = 2
TABLE = """
create table if not exists stamps (
  id bigint generated always as identity primary key, pid integer not null, job_id uuid not null, token bigint not null,
  group_key text not null, claimed timestamptz, began timestamptz not null default clock_timestamp(), ended timestamptz,
  unique (job_id, token)
)
"""

app = Faultline()
app.queue(QUEUE, concurrency=QUEUE_LIMIT, each_group=Limit(concurrency=GROUP_LIMIT), groups={STRICT: Limit(ordered=True)})

#: The answer may be lost with the server: then the row is there when this is sent again.
_BEGIN = """
insert into stamps (pid, job_id, token, group_key, claimed) values (%s, %s, %s, %s, (
  select j.claimed_at from faultline.open_jobs j where j.id = %s and j.fencing_token = %s
))
on conflict (job_id, token) do update set pid = excluded.pid returning id
"""


class Stumbled(Exception):
    """The job is tried again."""


class Stamps:
    """The table, over whatever connection can be had."""

    def __init__(self) -> None:
        self._connection: psycopg.Connection | None = None

    async def write(self, query: str, values: Sequence[Any]) -> Any:
        while True:
            try:
                if self._connection is None:
                    self._connection = psycopg.connect(app.dsn, autocommit=True, connect_timeout=2)
                return self._connection.execute(query.encode(), values).fetchone()
            except psycopg.OperationalError:
                # The server is being restarted. The lease may run out meanwhile, as with any job.
                self._connection = None
                await asyncio.sleep(0.02)


_stamps = Stamps()


@app.task(name="stamp", queue=QUEUE, group="{group}", lease=LEASE_SECONDS, max_attempts=1000)
async def stamp(job: Job, group: str, seconds: float, stumbles: bool) -> None:  # noqa: FBT001 - an argument of a job
    (row,) = await _stamps.write(_BEGIN, (os.getpid(), job.id, job.fencing_token, group, job.id, job.fencing_token))
    try:
        await asyncio.sleep(seconds)
    finally:
        await _stamps.write("update stamps set ended = clock_timestamp() where id = %s returning id", (row,))
    if stumbles and job.attempt == 1:
        raise Stumbled
