"""A nightly load: three sources are extracted side by side, loaded together, and a report is sent whatever happens.

Watch: the graph is known in advance, so it is enqueued as a whole, in the transaction that opens the night's books. If
that transaction is rolled back, nothing exists. In the second night a source is down: what comes after it is cancelled,
and the report, which is to run also then, says so.

    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/nightly.py
"""

import asyncio

from psycopg import AsyncConnection

from faultline import Cancel, Faultline, FlowHandle, Job

app = Faultline()

ROWS = {"crm": 300, "shop": 500, "web": 200}
DOWN = {("shop", "2026-11-17")}


@app.task(queue="etl")
async def extract(source: str, night: str) -> int | Cancel:
    if (source, night) in DOWN:
        return Cancel(f"the {source} is down")
    return ROWS[source]


@app.task(queue="etl")
async def load(job: Job) -> int:
    extracted = await job.upstream()
    return sum(one.result for one in extracted.values())


@app.task(queue="etl")
async def report(job: Job, night: str) -> str:
    loaded = (await job.upstream())["load"]
    if loaded.state == "succeeded":
        return f"{night}: {loaded.result} rows loaded"
    return f"{night}: nothing loaded, {loaded.state}: {loaded.error}"


async def enqueue(night: str) -> FlowHandle:
    async with await AsyncConnection.connect(app.dsn) as connection:  # one transaction
        await connection.execute("create table if not exists example_nights (night text primary key)")
        await connection.execute("insert into example_nights values (%s)", (night,))
        flow = app.flow("nightly")
        sources = [flow.add(extract, source, night) for source in ROWS]
        loaded = flow.add(load, after=sources)
        flow.add(report, night, after=[loaded], if_failed="run")
        return await flow.using(connection).aenqueue(idempotency_key=f"nightly:{night}")


async def main() -> None:
    async with app, app.worker({"etl": 10}):
        for night in ("2026-11-16", "2026-11-17"):
            handle = await enqueue(night)
            print(await handle.jobs["report"].aresult(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
