"""A job joins a transaction of Django that runs on psycopg2, the driver of sites that have not moved to psycopg 3."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from tests.driver import Driver

#: Django takes psycopg 3 where it finds it, and Faultline needs it: it is out of sight while Django looks.
PROGRAM = """
import json, sys

sys.modules["psycopg"] = None
import django.db.backends.postgresql.base
del sys.modules["psycopg"]

import django
from django.conf import settings
from django.db import connection, transaction
from faultline import Faultline

dsn, fields = sys.argv[1], json.loads(sys.argv[2])
names = {"dbname": "NAME", "user": "USER", "host": "HOST", "port": "PORT"}
given = {names[name]: value for name, value in fields.items() if name in names}
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **given}})
django.setup()
app = Faultline(dsn)

@app.task
def mail(n: int) -> None: ...

with transaction.atomic():
    kept = mail.using(connection).enqueue(1)
    others = app.using(connection).enqueue_many([mail.bind(2), mail.bind(3)])
try:
    with transaction.atomic():
        mail.using(connection).enqueue(4)
        raise KeyError
except KeyError:
    pass
print(json.dumps([type(connection.connection).__module__, str(kept.id), *(str(one.id) for one in others)]))
connection.close()
"""


def test_a_job_is_enqueued_if_the_transaction_commits_and_only_then(queue: Driver, dsn: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, dsn, json.dumps(conninfo_to_dict(dsn))], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr
    driver, *ids = json.loads(ran.stdout)
    assert driver == "psycopg2.extensions"
    assert [
        str(found) for (found,) in queue.execute("select id from faultline.jobs order by (args ->> 'n')::integer")
    ] == ids
