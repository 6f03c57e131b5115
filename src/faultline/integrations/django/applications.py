"""The application behind Django's tasks. It uses the database of one alias of `DATABASES`, whatever that is just now.

The test runner gives an alias another database while tests run. So the alias is looked up at each use: a test must never
write to the database of production.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.module_loading import import_string
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from faultline.app.application import Faultline
from faultline.core.bounds import CONCURRENCY
from faultline.core.errors import ConfigError
from faultline.integrations.django import running
from faultline.integrations.django.compat import Task as DjangoTask
from faultline.integrations.django.compat import task_backends

if TYPE_CHECKING:
    from faultline.app.tasks import Task
    from faultline.store.async_database import AsyncDatabase
    from faultline.store.database import Database

logger = logging.getLogger("faultline.django")

_applications: dict[str, DjangoFaultline] = {}
_making = threading.Lock()


def application(using: str = DEFAULT_DB_ALIAS) -> Faultline:
    """The application on the database of this alias, for what Django's interface has no words for.

    Cancel, retry, pause, and tasks of its own: `app = application()`, then `@app.task`.

    :param using: An alias of `DATABASES`.
    """
    with _making:
        if using not in _applications:
            _applications[using] = DjangoFaultline(using)
        return _applications[using]


class DjangoFaultline(Faultline):
    """An application whose database is that of an alias, and which finds Django's tasks by their paths."""

    def __init__(self, using: str) -> None:
        super().__init__(None)
        self._using = using
        self.tasks = Found(self)

    @property
    def dsn(self) -> str:
        """The database of the alias, as it is now."""
        return dsn_of(self._using)

    @property
    def database(self) -> Database:
        self._follow("database")
        return super().database

    @property
    def async_database(self) -> AsyncDatabase:
        self._follow("async_database")
        return super().async_database

    def queues(self) -> dict[str, int]:
        """The queues of Django's backends on this database, and of tasks of its own."""
        served = {name for backend in backends(self._using) for name in backend.queues}
        own = super().queues() if self.tasks or not served else {}
        return own | dict.fromkeys(sorted(served), CONCURRENCY)

    def _follow(self, name: str) -> None:
        """Leave the database that the alias had before."""
        opened = self.__dict__.get(name)
        if opened is not None and opened.dsn != self.dsn:
            self.close()


class Found(dict[str, "Task[..., Any]"]):
    """The tasks of an application. One of Django's is found by the name of its job, which is the path of its function."""

    def __init__(self, app: DjangoFaultline) -> None:
        super().__init__()
        self._app = app

    def get(self, name: str, default: Any = None) -> Any:
        """The task of this name. Never raises: a worker asks while it holds the job."""
        known = super().get(name)
        if known is None and (found := find(name)) is not None:
            known = self._app.task(name=name, timeout=_timeout_of(found))(running.runner(found))
            known.error_text = running.described
        return default if known is None else known


def find(path: str) -> Any:
    """Django's task of this path; None: there is none.

    The path comes from the database, and whoever may enqueue could have a worker import any module. So only packages of
    this project are looked at: those of installed applications, and that of its settings.
    """
    if not is_own(path):
        return None
    try:
        found = import_string(path)
    except ImportError as error:
        logger.debug("no task at %s: %s", path, error)
        return None
    except Exception:
        logger.exception("the module of task %s cannot be imported; its jobs wait for a worker that can", path)
        return None
    return found if isinstance(found, DjangoTask) else None


def is_own(path: str) -> bool:
    """Whether it is in a package of this project."""
    own = {name.partition(".")[0] for name in (*settings.INSTALLED_APPS, settings.SETTINGS_MODULE or "")}
    return path.partition(".")[0] in own - {""}


def backends(using: str | None = None) -> list[Any]:
    """Django's backends that are Faultline's; of this alias alone, if one is given."""
    aliases = [(one, getattr(one, "faultline_database", None)) for one in task_backends.all()]
    return [one for one, alias in aliases if alias is not None and using in (None, alias)]


def dsn_of(using: str) -> str:
    """The DSN of an alias of `DATABASES`."""
    connection = connections[using]
    if connection.vendor != "postgresql":
        raise ConfigError(
            f"the database {using!r} of Django is {connection.vendor}, but Faultline needs PostgreSQL; name another one "
            'with OPTIONS = {"database": …} of the backend in TASKS'
        )
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    given = connection.get_connection_params()
    return make_conninfo(**{name: value for name, value in given.items() if name in known and value is not None})


def _timeout_of(task: Any) -> float | None:
    seconds: float | None = task.get_backend().options.get("timeout")
    return seconds
