"""The shop on Litestar: a lifespan, an order with its job, and the dashboard at a path.

pip install litestar uvicorn
export FAULTLINE_DSN=embedded:
faultline migrate
uvicorn examples.shop_litestar:web
"""

from litestar import Litestar, Request, asgi, post
from litestar.datastructures import State
from litestar.types import Receive, Scope, Send
from psycopg import AsyncConnection
from starlette.requests import Request as Asking

from faultline import Faultline
from faultline.integrations.asgi import lifespan
from faultline.web.mounted import Dashboard, Visitor

queue = Faultline()


@queue.task(queue="shipping")
async def ship(item: str) -> str:
    return f"a parcel with a {item}"


@post("/orders")
async def order(request: Request[None, None, State]) -> dict[str, str]:
    item = request.query_params["item"]
    async with await AsyncConnection.connect(queue.dsn) as connection:
        handle = await ship.using(connection).aenqueue(item)
    return {"job": str(handle.id)}


def visitor(asking: Asking) -> Visitor | None:
    """A real shop looks at its own session here."""
    return Visitor("ada") if asking.cookies.get("shop_user") == "ada" else None


dashboard = Dashboard(queue, visitor, path="/faultline")


@asgi("/faultline", is_mount=True, copy_scope=True)
async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
    await dashboard(scope, receive, send)  # type: ignore[arg-type]  # the same types under Litestar's own names


web = Litestar([order, mounted], lifespan=[lifespan(queue, worker={"shipping": 10}, dashboard=dashboard)])
