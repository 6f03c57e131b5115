"""One of the processes of the hammer: verbs at random on real sessions, in long transactions and with rollbacks.

Run as `python -m tests.limits.hammer DSN SEED SECONDS STEADY`. What it did and was refused goes to standard output.
"""

from __future__ import annotations

import collections
import json
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE, GROUPS, GROUP_LIMIT, QUEUE_LIMIT = "q", 12, 2, 15
#: The last of them keeps its order.
STRICT = f"g{GROUPS - 1}"
DECLARED: dict[str, Any] = {
    "queue": {"concurrency": QUEUE_LIMIT},
    "each_group": {"concurrency": GROUP_LIMIT},
    "groups": {STRICT: {"ordered": True}},
}
_LEASES = "%s::uuid[], %s::bigint[], %s::text[]"
Lease = tuple[Any, int, str]
#: Somebody was quicker, or holds what is wanted.
_FORESEEN = frozenset({"FL002", "FL004", "55P03"})


class Hammer:
    def __init__(self, dsn: str, seed: int, *, steady: bool) -> None:
        self._chance = random.Random(seed)
        self._name = f"h{seed}"
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._claims = 0
        self._held: list[Lease] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self._verbs: dict[Callable[[], None], float] = {
            self._enqueue: 30, self._claim: 30, self._end: 30, self._reap: 5, self._cancel: 3, self.maintain_limits: 2,
            self._recover: 0.3, self._retry: 0.4, self._recount: 0.3, **({} if steady else {self._set_limit: 1.0}),
        }  # fmt: skip

    def strike(self) -> None:
        (verb,) = self._chance.choices(list(self._verbs), weights=list(self._verbs.values()))
        try:
            verb()
        except psycopg.Error as error:
            told = "" if error.sqlstate in _FORESEEN else f" {str(error).splitlines()[0][:200]}"
            self.counts[f"error {error.sqlstate}{told}"] += 1

    def _happens(self, share: float) -> bool:
        return self._chance.random() < share

    def _transaction(self, undone: float) -> Any:
        return self._connection.transaction(force_rollback=self._happens(undone))

    def _pause(self, share: float) -> None:
        if self._happens(share):
            time.sleep(self._chance.random() * 0.25)

    def _job(self) -> dict[str, Any]:
        chance = self._chance
        job = {
            "task": "t", "queue": QUEUE, "max_attempts": 1000, "lease_seconds": chance.choice([1, 2, 30]),
            "priority": chance.choice([0, 0, 0, -3, 5]),
        }  # fmt: skip
        if not self._happens(0.15):
            job["group"] = f"g{min(int(chance.expovariate(0.4)), GROUPS - 1)}"
        if self._happens(0.15):
            job["delay_seconds"] = round(chance.random() * 0.4, 3)
        return job

    def _enqueue(self) -> None:
        jobs = [self._job() for _ in range(self._chance.randint(1, 6))]
        with self._transaction(0.15):
            self._connection.execute("select count(*) from faultline.enqueue_many(%s)", (json.dumps(jobs),))
            self._pause(0.3)
        self.counts["enqueued"] += len(jobs)

    def _claim(self) -> None:
        self._claims += 1
        owner = f"{self._name}/{self._claims}"
        with self._transaction(0.1) as transaction:
            rows = self._connection.execute(
                "select job_id, fencing_token from faultline.claim(%s, %s, %s)", (QUEUE, owner, self._chance.randint(1, 20))
            ).fetchall()
            self._pause(0.05)
            undone = transaction.force_rollback
        if not undone:
            self._held += [(job_id, token, owner) for job_id, token in rows]
            self.counts["granted"] += len(rows)

    def _end(self) -> None:
        if not self._held:
            return
        self._chance.shuffle(self._held)
        place = self._chance.randint(1, len(self._held))
        some, self._held = self._held[:place], self._held[place:]
        leases = tuple(list(column) for column in zip(*some, strict=True))
        verb = self._chance.choices([self._complete, self._fail, self._release, None], weights=[60, 15, 10, 15])[0]
        if verb is None:
            return  # abandoned: its leases run out
        with self._transaction(0.05):
            sql, more = verb(len(some))
            rows = self._connection.execute(f"select reason from faultline.{sql}".encode(), (*leases, *more)).fetchall()
            self.counts.update(reason for (reason,) in rows)
            self._pause(0.1)

    def _complete(self, _: int) -> tuple[str, tuple[Any, ...]]:
        return f"complete({_LEASES})", ()

    def _fail(self, number: int) -> tuple[str, tuple[Any, ...]]:
        failures = [
            {
                "then": self._chance.choice(["retry", "retry", "fail", "cancel"]),
                "delay_seconds": round(self._chance.random() * 0.2, 3),
                "error": "x",
            }
            for _ in range(number)
        ]
        return f"fail({_LEASES}, %s)", (json.dumps(failures),)

    def _release(self, number: int) -> tuple[str, tuple[Any, ...]]:
        delays = [self._chance.choice([None, 0.1]) for _ in range(number)]
        return f"release({_LEASES}, %s::float8[])", (self._chance.choice([None, delays]),)

    def _reap(self) -> None:
        rows = self._connection.execute("select state from faultline.reap(1000, false)").fetchall()
        self.counts["reaped"] += len(rows)

    def _cancel(self) -> None:
        with self._transaction(0.3):
            found = self._connection.execute(
                "select id from faultline.open_jobs where state in ('queued', 'running') order by random() limit 1"
            ).fetchone()
            if found:
                self._connection.execute("select faultline.cancel(%s)", found)
                self.counts["cancelled"] += 1
            self._pause(0.3)

    def _retry(self) -> None:
        query = "select id from faultline.open_jobs where state in ('failed', 'cancelled') limit 5"
        for found in self._connection.execute(query).fetchall():
            self._connection.execute("select faultline.retry(%s)", found)
            self.counts["retried"] += 1

    def maintain_limits(self) -> None:
        with self._transaction(0.2):
            self._connection.execute("select faultline.maintain_limits()")
            self._pause(0.2)
        self.counts["folded"] += 1

    def _recount(self) -> None:
        self._connection.execute("select faultline.recount(%s)", (QUEUE,))
        self.counts["recounted"] += 1

    def _recover(self) -> None:
        self._connection.execute("select count(*) from faultline.recover()")
        # It holds queues with limits for half a minute, for the code that still runs. Here none does.
        self._connection.execute("update faultline.settings set limits_held_until = null")
        self.counts["recovered"] += 1

    def _set_limit(self) -> None:
        chance = self._chance
        with self._transaction(0.2):
            key = chance.choice(["", "*", "g0", "g1"])
            if self._happens(0.3):
                self._connection.execute("select faultline.reset_limit(%s, %s, 'ada', 'test')", (QUEUE, key))
            else:
                fields = {"concurrency": chance.choice([1, 2, 3, 15, None])}
                if self._happens(0.2):
                    fields["rate"] = chance.choice([50, 500, None])
                words = (QUEUE, key, json.dumps(fields))
                self._connection.execute("select faultline.set_limit(%s, %s, %s::jsonb, 'ada', 'test')", words)
            self._pause(0.2)
        self.counts["limits set"] += 1


def main() -> None:
    dsn, seed, seconds, steady = sys.argv[1:]
    hammer = Hammer(dsn, int(seed), steady=steady == "steady")
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        hammer.strike()
    sys.stdout.write(json.dumps(hammer.counts))


if __name__ == "__main__":
    main()
