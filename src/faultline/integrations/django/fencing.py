"""Django's ORM under the fence of the running job: what it writes and the end of the job commit together."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from django.db import DEFAULT_DB_ALIAS, connections

from faultline.app.blocking_job import BlockingJob
from faultline.attempt.current import current_job
from faultline.core.errors import ConfigError
from faultline.integrations.django.running import completed
from faultline.store import jsontext

if TYPE_CHECKING:
    from collections.abc import Iterator

    from faultline.attempt.transaction import JoinedTransaction


@contextlib.contextmanager
def atomic(using: str = DEFAULT_DB_ALIAS) -> Iterator[JoinedTransaction]:
    """`transaction.atomic`, fenced: it commits only while the running task holds its job, and raises `StaleLease` otherwise.

    With `tx.complete(result)` inside it, the writes of the ORM and the completion of the job commit together: the effects
    happen exactly once.

    :param using: An alias of `DATABASES`: that of the jobs.
    """
    job = current_job()
    if job is None:
        raise ConfigError(
            "atomic() of Faultline is for the code of a running task; elsewhere use django.db.transaction.atomic"
        )
    if not isinstance(job, BlockingJob):
        raise ConfigError(
            f"task {job.task} is async, and Django's transactions are not; make it `def`, or call a blocking task of its own"
        )
    transaction: JoinedTransaction | None = None
    try:
        with job.transaction(connections[using]) as transaction:
            yield transaction
    finally:
        # Also if a hook of `on_commit` raises: that is after the commit.
        if job._hold.completed and transaction is not None and transaction.result is not None:  # noqa: SLF001
            completed.set((jsontext.decode(transaction.result),))
