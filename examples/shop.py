"""A shop on FastAPI and SQLAlchemy: orders and their jobs commit together, and the dashboard is a part of the shop.

Watch: an order and its job are written in one transaction, and so are the parcel and the end of the job. The dashboard asks
the shop who is signed in.

    pip install fastapi uvicorn sqlalchemy
    export FAULTLINE_DSN=embedded:
    faultline migrate
    python examples/shop.py
    curl -X POST 'localhost:8000/orders?item=lamp'
    open http://localhost:8000/faultline/          (ada, with the password analytical)
"""

import base64
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from faultline import Faultline, Job
from faultline.integrations.asgi import lifespan
from faultline.web.mounted import Dashboard, Visitor

queue = Faultline()
engine = create_async_engine(queue.url)
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "shop_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    parcel: Mapped[str | None]


@queue.task(queue="shipping")
async def ship(job: Job, order_id: int) -> str:
    parcel = f"parcel-{order_id}"
    async with sessions() as session, job.transaction(session) as tx:
        order = await session.get_one(Order, order_id)
        order.parcel = parcel
        tx.complete(parcel)
    return parcel


PASSWORDS = {"ada": "analytical"}


def visitor(request: Request) -> Visitor | Response:
    """Who is asking for the dashboard. A real shop looks at its own session here."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    user, _, password = base64.b64decode(given).decode().partition(":") if kind == "Basic" else ("", "", "")
    if secrets.compare_digest(PASSWORDS.get(user, secrets.token_hex()), password):
        return Visitor(user, scopes=("read", "operate"))
    return Response(status_code=401, headers={"WWW-Authenticate": 'Basic realm="shop"'})


@asynccontextmanager
async def tables(_: FastAPI) -> AsyncGenerator[None, None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


dashboard = Dashboard(queue, visitor)
web = FastAPI(lifespan=lifespan(queue, worker={"shipping": 10}, dashboard=dashboard, inside=tables))
web.mount("/faultline", dashboard)


async def new_session() -> AsyncIterator[AsyncSession]:
    async with sessions() as session:
        yield session


OwnSession = Annotated[AsyncSession, Depends(new_session)]


@web.post("/orders", status_code=202)
async def order(item: str, session: OwnSession) -> dict[str, Any]:
    async with session.begin():
        placed = Order(item=item)
        session.add(placed)
        await session.flush()  # now it has its id
        handle = await ship.using(session).aenqueue(placed.id)
    # Both are committed here, before anything is answered.
    return {"order": placed.id, "job": handle.id}


@web.get("/orders/{order_id}")
async def parcel_of(order_id: int, session: OwnSession) -> dict[str, Any]:
    found = await session.get_one(Order, order_id)
    return {"item": found.item, "parcel": found.parcel}


if __name__ == "__main__":
    uvicorn.run(web)
