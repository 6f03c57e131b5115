"""A database and a clock for one test. Both are restored at the end of the block."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from faultline.app.application import Faultline
from faultline.core.errors import ConfigError
from faultline.store import scratch
from faultline.store.testing import FrozenTime

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def scratch_database(dsn: str | None = None) -> Iterator[str]:
    """Create a migrated database on the server of this DSN, and drop it at the end of the block. Yields its DSN.

    Default: the server of FAULTLINE_DSN or DATABASE_URL; `embedded:` works too.
    """
    with Faultline(dsn) as app, scratch.database(app.dsn) as made:
        yield made


@contextlib.contextmanager
def on_database(app: Faultline, dsn: str) -> Iterator[None]:
    """Inside the block, the application uses this database instead of its own."""
    named = app._named  # noqa: SLF001
    app.close()
    app._named = dsn  # noqa: SLF001
    try:
        if app.dsn != dsn:
            raise ConfigError(
                f"{type(app).__name__} chooses its database itself; Django's test runner gives it one for tests"
            )
        yield
    finally:
        app.close()
        app._named = named  # noqa: SLF001


@contextlib.contextmanager
def frozen_time(where: Faultline | str, *, test_database: bool = False) -> Iterator[FrozenTime]:
    """Freeze the clock that decides about leases and due times, and move it by hand: `time.advance(60)`.

    It stops for every user of the database, so this is refused if workers of other processes use it, or if the database's
    name does not say that it is for tests. `test_database=True` says it instead.
    """
    with contextlib.ExitStack() as stack:
        app = stack.enter_context(Faultline(where)) if isinstance(where, str) else where
        yield stack.enter_context(contextlib.closing(FrozenTime(app.dsn, test_database=test_database)))
