"""Move money between two accounts exactly once, whatever happens on the way.

Watch: the two updates and the completion of the job are one transaction, and the database lets only the holder of the
lease into it. So an attempt that fails leaves nothing behind, and one that has lost its job without noticing is refused.
The job is claimed three times below, and each time it tries to move the money; it moves once.

    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/transfer.py
"""

import asyncio
from uuid import uuid4

from psycopg import AsyncConnection

from faultline import Faultline, Job, StaleLease

app = Faultline()

FAILS, STALLS = 1, 2  # what befalls the job the first and the second time it is claimed


@app.task(queue="transfers", max_attempts=5, backoff=lambda _: 0)
async def transfer(job: Job, payer: str, payee: str, amount: int) -> int:
    who = f"attempt {job.attempt}, token {job.fencing_token}"
    if job.fencing_token == STALLS:
        await take_away(job)
    try:
        async with job.transaction() as tx:
            await tx.execute("update example_accounts set balance = balance - %s where owner = %s", (amount, payer))
            await tx.execute("update example_accounts set balance = balance + %s where owner = %s", (amount, payee))
            if job.fencing_token == FAILS:
                print(f"{who}: fails with both updates made")
                raise ConnectionResetError("something else broke")
            tx.complete(amount)
    except StaleLease:
        print(f"{who}: stalled, lost its lease, and was refused")
        raise
    print(f"{who}: moved {amount}")
    return amount  # for the type of the result; it is `complete` above that stored it


async def take_away(job: Job) -> None:
    """Do to this attempt what a long freeze does: its lease runs out, a reaper comes by, the job is up for others.

    Only the owner of the tables can turn the time forward like this. No program should.
    """
    async with await AsyncConnection.connect(app.dsn, autocommit=True) as connection:
        await connection.execute(
            "update faultline.open_jobs set lease_expires_at = faultline.clock() where id = %s", (job.id,)
        )
        await connection.execute("select faultline.reap(notice_dead => false)")


async def main() -> None:
    async with app:
        await open_accounts(ada=100, grace=0)
        print("before:", await balances())

        # Sent twice, as by an impatient customer: the key makes it one job.
        payment = transfer.options(idempotency_key=f"payment:{uuid4()}")
        first = await payment.aenqueue("ada", "grace", 30)
        again = await payment.aenqueue("ada", "grace", 30)
        print("submitted twice, jobs made:", len({first.id, again.id}))

        async with app.worker():
            await first.aresult(timeout=30)

        job = await first.ajob()
        print("after:", await balances())
        print(f"{job.state} in attempt {job.attempt} of {job.max_attempts}, claimed {job.fencing_token} times")


async def open_accounts(**balances: int) -> None:
    async with await AsyncConnection.connect(app.dsn) as connection:
        await connection.execute("create table if not exists example_accounts (owner text primary key, balance integer)")
        await connection.execute("truncate example_accounts")
        for owner, balance in balances.items():
            await connection.execute("insert into example_accounts values (%s, %s)", (owner, balance))


async def balances() -> dict[str, int]:
    async with await AsyncConnection.connect(app.dsn) as connection:
        cursor = await connection.execute("select owner, balance from example_accounts order by owner")
        return dict(await cursor.fetchall())


if __name__ == "__main__":
    asyncio.run(main())
