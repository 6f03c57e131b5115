"""A web program that takes orders, and ships them in the background, in the same process.

Watch: an order and its job are written in one transaction. There is no moment at which the one exists without the other:
no order that nobody ships because the program died in between, no job that ships an order which was rolled back.

    pip install fastapi uvicorn
    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/web.py
    curl -X POST 'localhost:8000/orders?item=lamp'
    curl localhost:8000/jobs/...
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import uvicorn
from fastapi import FastAPI, HTTPException
from psycopg import AsyncConnection

from faultline import Faultline, Job, JobNotFound

queue = Faultline()


@queue.task(queue="shipping", max_attempts=5)
async def ship(job: Job, order_id: int) -> str:
    await asyncio.sleep(0.05)  # the parcel service takes its time
    parcel = f"parcel-{order_id}"
    async with job.transaction() as tx:
        await tx.execute("update example_orders set parcel = %s where id = %s", (parcel, order_id))
        tx.complete(parcel)
    return parcel


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    async with queue:
        async with await AsyncConnection.connect(queue.dsn) as connection:
            await connection.execute(
                "create table if not exists example_orders ("
                " id integer generated always as identity primary key, item text not null, parcel text)"
            )
        # Leaving the block stops claiming and finishes what runs, so that a deployment interrupts nobody's parcel.
        async with queue.worker({"shipping": 10}, grace_seconds=10):
            yield


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def order(item: str) -> dict[str, Any]:
    # The end of this block commits both writes; an error in it takes both back. (A busier program would use a pool.)
    async with await AsyncConnection.connect(queue.dsn) as connection:
        cursor = await connection.execute("insert into example_orders (item) values (%s) returning id", (item,))
        ((order_id,),) = await cursor.fetchall()
        handle = await ship.using(connection).aenqueue(order_id)
    return {"order": order_id, "job": handle.id}


@web.get("/jobs/{job_id}")
async def job_state(job_id: UUID) -> dict[str, Any]:
    try:
        job = await queue.ajob(job_id)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from error
    return {"state": job.state, "attempt": job.attempt, "result": job.result, "last_error": job.last_error}


if __name__ == "__main__":
    uvicorn.run(web)
