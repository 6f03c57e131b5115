"""The shop on Flask and SQLAlchemy: an order with its job, and the dashboard as a blueprint.

pip install flask a2wsgi sqlalchemy
export FAULTLINE_DSN=embedded:
faultline migrate
flask --app examples/shop_flask.py run
faultline worker examples/shop_flask.py:queue      (in another terminal)
"""

import flask
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from faultline import BlockingJob, Faultline
from faultline.web.flask import blueprint
from faultline.web.mounted import Visitor

queue = Faultline()
engine = create_engine(queue.url)
web = flask.Flask(__name__)
web.secret_key = "only for this example"  # noqa: S105


@queue.task(queue="shipping")
def ship(job: BlockingJob, item: str) -> None:
    with Session(engine) as session, job.transaction(session) as tx:
        session.execute(text("select 1"))  # what the shop writes
        tx.complete(f"a parcel with a {item}")


@web.post("/orders")
def order() -> tuple[dict[str, str], int]:
    with Session(engine) as session, session.begin():
        handle = ship.using(session).enqueue(flask.request.args["item"])
    return {"job": str(handle.id)}, 202


def visitor() -> Visitor | None:
    """Called in Flask's request: its session says who is signed in."""
    user = flask.session.get("user")
    return None if user is None else Visitor(user, scopes=("read", "operate"))


web.register_blueprint(blueprint(queue, visitor), url_prefix="/faultline")
