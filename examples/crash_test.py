"""Crash two tasks wherever they can crash, and see which one survives.

Watch: without a crash both write their payment once. The first writes it in the transaction that also completes the job,
so a crash takes both or neither. The second writes it through a connection of its own: a crash after that, and before the
job is completed, leaves a payment behind of a job that is not done, and the next attempt pays again.

Each crash is a process that is really killed. All of it happens in a scratch database, which is dropped again.

    export FAULTLINE_DSN=embedded:
    python examples/crash_test.py
"""

import psycopg

from faultline import Faultline, Job
from faultline.testing import crash_everywhere, scratch_database


def main() -> None:
    with scratch_database() as dsn, Faultline(dsn) as app:
        with psycopg.connect(dsn) as connection:
            connection.execute("create table payments (order_id integer)")

        @app.task
        async def pay_in_the_jobs_transaction(job: Job, order_id: int) -> None:
            async with job.transaction() as tx:
                await tx.execute("insert into payments values (%s)", (order_id,))
                tx.complete()

        @app.task
        async def pay_beside_it(order_id: int) -> None:
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                await connection.execute("insert into payments values (%s)", (order_id,))

        def payments() -> int:
            with psycopg.connect(dsn) as connection:
                row = connection.execute("select count(*) from payments").fetchone()
                return int(row[0]) if row else 0

        print(crash_everywhere(app, pay_in_the_jobs_transaction.bind(42), effects=payments))
        print()
        try:
            crash_everywhere(app, pay_beside_it.bind(42), effects=payments).raise_if_broken()
        except AssertionError as broken:
            print(broken)


if __name__ == "__main__":
    main()
