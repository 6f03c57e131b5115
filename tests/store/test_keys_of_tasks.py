"""Unique keys of an earlier schema belong to the tasks of their jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faultline.store.install.migrate import numbered

if TYPE_CHECKING:
    from tests.driver import Driver

JOB = '[{"task": "mail.send", "unique": {"key": "k", "while": null, "period": 86400}}]'
ENQUEUE = "select job_id from faultline.enqueue_many(%s::text)"


def test_a_key_that_was_there_before_is_that_of_its_jobs_task(queue: Driver) -> None:
    first = queue.value(ENQUEUE, JOB)
    queue.complete(queue.claim_one())
    queue.execute("alter table faultline.unique_keys drop column task, add primary key (queue, key)")
    queue.execute("drop index faultline.unique_keys_kept")
    queue.execute("alter table faultline.workers drop column limits")
    queue.execute("alter table faultline.shards drop column entry")
    queue.execute("create index unique_keys_at on faultline.unique_keys (at)")

    (migration,) = [one for one in numbered() if one.number == 17]
    queue.execute(migration.text)

    assert queue.value(ENQUEUE, JOB) == first
    assert queue.value(ENQUEUE, JOB.replace("mail.send", "other")) != first
