"""Every setting, once: its name, its type, its default, its bounds, its variables, and one sentence about it.

The options of the commands, what a file and the environment may say, the keyword arguments of `app.worker(…)` that are the
same, and the tables of docs/reference/settings.md are made from this. The command line counts most, then the environment,
then the file. A message about a value says where it came from.

The database has no default: a forgotten variable must be an error, not a queue on a scratch disk.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from dataclasses import dataclass
from datetime import date, time
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar, cast

from faultline.core.bounds import ARGS_BYTES_MAX, CONCURRENCY, JOB_CONNECTIONS_MAX, RESULT_BYTES_MAX
from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from faultline.core.model import Retention

T = TypeVar("T")
_PORT_MAX = 65_535
_DAY_SECONDS, _CENTURY_SECONDS = 86_400, 3_155_760_000


def _setting(default: T, about: str, **more: Any) -> T:
    """A field of the catalogue. What more may be said of it are fields of `Setting`."""
    return dataclasses.field(default=default, metadata={"about": about, **more})


def _kept(days: int, about: str) -> int:
    return _setting(days * _DAY_SECONDS, about, most=_CENTURY_SECONDS, metavar="SPAN")


def queue_of(text: str) -> tuple[str, int] | None:
    """Read NAME or NAME=CONCURRENCY. None if it is neither."""
    found = re.fullmatch(r"([^=]+)(?:=([0-9]{0,6}))?", text)
    if found is None or (found[2] and int(found[2]) < 1):
        return None
    return found[1], int(found[2] or CONCURRENCY)


def _fault_of_log_format(form: str) -> str | None:
    return None if form in ("auto", "text", "json") else f"is {form[:100]!r}; write auto, text or json"


def _fault_of_queues(texts: list[str]) -> str | None:
    names = [found[0] for text in texts if (found := queue_of(text))]
    if len(names) < len(texts):
        wrong = next(text for text in texts if queue_of(text) is None)
        return f"has {wrong[:100]!r}; write NAME or NAME=CONCURRENCY, for example mail=50"
    twice = next((name for name in names if names.count(name) > 1), None)
    return None if twice is None else f"names {twice} twice; name each queue once"


@dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """Of every program and every command."""

    dsn: str | None = _setting(
        None,
        "The database: postgresql://…, or embedded: or embedded:FOLDER for a private PostgreSQL.",
        also=("DATABASE_URL",),
        python="Faultline(dsn)",
    )
    timeout: float = _setting(
        30.0, "Seconds that one call may wait for the database.", no_limit=True, python="Faultline(timeout=…)", option=""
    )
    pg_bin: str | None = _setting(None, "The folder with PostgreSQL's programs, for embedded:.", option="")


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Of `faultline worker`."""

    queue: list[str] | None = _setting(  # noqa: RUF009 - a field
        None, "NAME or NAME=CONCURRENCY; may be repeated. Default: all.", metavar="NAME", fault=_fault_of_queues
    )
    processes: int = _setting(1, "Worker processes under one parent.", least=1, most=256)
    grace: float = _setting(30.0, "Seconds that running jobs get to finish after SIGTERM.", python="grace_seconds")
    loop_timeout: float = _setting(
        60.0,
        "Seconds that the event loop may be blocked before the process is killed; 0: no limit.",
        no_limit=True,
        zero_is_no_limit=True,
        python="loop_timeout_seconds",
    )
    abandoned_threads_max: int = _setting(
        20, "Exit for a restart when more threads than this have overrun their timeout.", python="abandoned_threads_max"
    )
    job_connections: int | None = _setting(
        None,
        f"Connections that jobs may use at once. Default: one per running job, at most {JOB_CONNECTIONS_MAX}.",
        least=1,
        python="job_connections_max",
    )
    task_processes: int | None = _setting(
        None,
        'Processes for tasks with executor="process", in each worker process. Default: one per CPU.',
        least=1,
        most=1024,
        python="task_processes",
    )
    max_jobs: int | None = _setting(
        None, "Exit for a restart after so many jobs. Default: never.", least=1, python="max_jobs"
    )
    max_memory: int | None = _setting(
        None, "Exit for a restart when the process uses more MiB than this. Default: never.", least=1, python="max_memory"
    )
    metrics_port: int | None = _setting(None, "Serve metrics for Prometheus on this port.", least=1, most=_PORT_MAX)
    metrics_host: str = _setting("127.0.0.1", "The address of the metrics; 0.0.0.0 for all, as in a container.")
    health_port: int | None = _setting(None, "Serve /live and /ready on this port.", least=1, most=_PORT_MAX)
    health_host: str = _setting("127.0.0.1", "The address of /live and /ready; 0.0.0.0 for all, as in a container.")
    quiet: bool = _setting(False, "Do not log events to standard error.")
    log_format: str = _setting(
        "auto",
        "How to log: text, json, or auto (text on a terminal).",
        metavar="FORMAT",
        fault=_fault_of_log_format,
    )

    def options(self) -> WorkerOptions:
        """Those that `app.worker(…)` takes as well."""
        given = {one.python: getattr(self, one.name) for one in settings_of(WorkerSettings) if one.python}
        return cast("WorkerOptions", given)

    def words(self) -> list[str]:
        """The same for a process of its own: what holds for each of several."""
        given = [(one.option, getattr(self, one.name)) for one in settings_of(WorkerSettings) if one.python]
        words = [word for option, value in given if value is not None for word in (option, str(value))]
        return [*words, "--log-format", self.log_format, *(["--quiet"] if self.quiet else [])]


class WorkerOptions(TypedDict, total=False):
    """The keyword arguments of `app.worker(…)` and `app.run_worker(…)`."""

    #: How long running jobs may go on after the worker was asked to stop. The rest are then released. Default: 30.
    grace_seconds: float
    #: How long this worker keeps what has ended. Default: as the settings of the database say.
    retention: Retention | None
    #: Exit for a restart when more threads than this have overrun their timeout. Default: 20.
    abandoned_threads_max: int
    #: Connections that jobs may use at once. Default: one for each job, at most 20.
    job_connections_max: int | None
    #: End the process when the event loop is blocked for so long; `math.inf` for never. Default: 60. Only for a worker that
    #: has the process to itself (`app.run_worker()`).
    loop_timeout_seconds: float
    #: How many processes run tasks with `executor="process"` at once. Default: one per CPU.
    task_processes: int | None
    #: Stop after so many jobs, to be started again with a fresh process. Default: never.
    max_jobs: int | None
    #: Stop when the process uses more than so many MiB, to be started again with a fresh one. Default: never.
    max_memory: int | None


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Of `faultline serve`."""

    host: str = _setting("127.0.0.1", "The address to listen on. Any other than loopback needs API keys.")
    port: int = _setting(8000, "The port to listen on.", most=_PORT_MAX)
    keys_later: bool = _setting(False, "Start without an API key.")
    metrics_port: int | None = _setting(None, "Serve metrics on this port, without a key.", least=1, most=_PORT_MAX)
    metrics_host: str = _setting("127.0.0.1", "The address of the metrics; 0.0.0.0 for all, as in a container.")
    trusted_proxies: str | None = _setting(
        None,
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted: addresses and networks, comma-separated.",
        metavar="ADDRESSES",
        also=("FAULTLINE_TRUSTED_PROXIES",),
    )
    quiet: bool = _setting(False, "Do not log events to standard error.")
    log_format: str = _setting(
        "auto",
        "How to log: text, json, or auto (text on a terminal).",
        metavar="FORMAT",
        fault=_fault_of_log_format,
    )


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """What holds for every program on one database. Changed with `faultline settings`, or with SQL: `change_setting`."""

    args_bytes_max: int = _setting(ARGS_BYTES_MAX, "Largest arguments of a job, in bytes.", least=1024, most=67_108_864)
    result_bytes_max: int = _setting(
        RESULT_BYTES_MAX,
        "Largest result of a job or a step, in bytes; workers read it when they start.",
        least=1024,
        most=67_108_864,
    )
    keep_succeeded_seconds: int = _kept(7, "How long succeeded jobs are kept.")
    keep_failed_seconds: int = _kept(30, "How long failed and cancelled jobs are kept.")
    keep_journal_seconds: int = _kept(30, "How long the journal is kept.")
    keep_keys_seconds: int = _kept(30, "How long idempotency keys are kept.")
    keep_flows_seconds: int = _kept(
        7, "How long flows are kept after their first job has ended; if it failed, at least as long as failed jobs."
    )


#: Tables of the file, which are commands.
TABLES = {"worker": WorkerSettings, "serve": ServeSettings}


class Setting(NamedTuple):
    """One entry of the catalogue."""

    name: str
    #: `int`, `float` (seconds), `str`, `bool` or `list[str]`.
    kind: str
    default: Any
    about: str
    #: On the command line. Empty: it has none.
    option: str
    #: The variables that set it; the first counts most.
    variables: tuple[str, ...]
    least: int = 0
    most: int | None = None
    #: It is above 0, and infinite for no limit.
    no_limit: bool = False
    #: Where people write it, 0 is as good as infinite.
    zero_is_no_limit: bool = False
    metavar: str | None = None
    #: How Python's callers say it.
    python: str | None = None
    #: What is wrong with a value of the right type, if anything.
    fault: Callable[[Any], str | None] | None = None

    @property
    def shown_default(self) -> str:
        if self.default is None or self.kind == "bool":
            return ""
        if self.kind == "int" and self.name.endswith("_seconds"):
            return f"{self.default // _DAY_SECONDS}d"
        return f"{self.default:g}" if self.kind == "float" else str(self.default)

    @property
    def allowed(self) -> str:
        number = "a number of seconds" if self.kind == "float" or self.name.endswith("_seconds") else "a whole number"
        if self.no_limit:
            return f"{number} greater than 0, or inf for no limit"
        if self.kind in {"int", "float"}:
            bounds = f"of at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
            return f"{number} {bounds}"
        return {"bool": "true or false", "str": "text"}.get(self.kind, "a list of texts")

    def checked(self, value: object, where: str, written: object = None) -> Any:
        """The value, if it may be that. True is one for Python, and a mistake for us; a NaN is neither below 0 nor above."""
        if self.kind in {"int", "float"}:
            types: Any = int if self.kind == "int" else int | float
            fits = isinstance(value, types) and not isinstance(value, bool) and cast("float", value) >= self.least
            fits = fits and (self.most is None or cast("float", value) <= self.most) and not (self.no_limit and value == 0)
        elif self.kind == "list[str]":
            fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        else:
            fits = isinstance(value, bool if self.kind == "bool" else str)
        if not fits:
            shown = shown_as(value if written is None else written, secret=self.kind == "str")
            raise ConfigError(f"{where} is {shown}; it must be {self.allowed}")
        if any("\0" in text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)):
            raise ConfigError(f"{where} contains a NUL character, which no name and no address has")
        if self.fault is not None and (fault := self.fault(value)):
            raise ConfigError(f"{where} {fault}")
        return value

    def read(self, written: object, where: str) -> Any:
        """The value of what people wrote, as text or as TOML has it."""
        value = written
        if isinstance(written, str):
            value = _READERS.get(self.kind, str)(written)
        if self.zero_is_no_limit and value == 0 and value is not False:
            value = math.inf
        return self.checked(value, where, written)


#: How a message names a value that it does not show: it may hold a password, or be long.
_KINDS: dict[type, str] = {str: "text", list: "a list", dict: "a table", date: "a date or a time", time: "a date or a time"}


def shown_as(value: object, *, secret: bool = False) -> str:
    if value is None or isinstance(value, int | float) or (isinstance(value, str) and not secret):
        return repr(value)[:100]
    return next((word for kind, word in _KINDS.items() if isinstance(value, kind)), type(value).__name__)


def _number(make: type[float]) -> Any:
    def read(text: str) -> float | None:
        try:
            return make(text)
        except ValueError:
            return None

    return read


_TRUTHS = {"1": True, "true": True, "t": True, "yes": True, "y": True, "on": True}
_TRUTHS |= {"0": False, "false": False, "f": False, "no": False, "n": False, "off": False}
_READERS = {
    "int": _number(int),
    "float": _number(float),
    "bool": lambda text: _TRUTHS.get(text.strip().lower()),
    "list[str]": str.split,
}


def settings_of(kind: type) -> Iterator[Setting]:
    """The entries of a class of settings."""
    command = {of: f"{table}_".upper() for table, of in TABLES.items()}.get(kind, "")
    for field in dataclasses.fields(kind):
        said = {"option": f"--{field.name.removesuffix('_seconds').replace('_', '-')}", **field.metadata}
        also = said.pop("also", ())
        # The settings of a database stand in the database.
        said["variables"] = () if kind is DatabaseSettings else (f"FAULTLINE_{command}{field.name.upper()}", *also)
        yield Setting(name=field.name, kind=str(field.type).removesuffix(" | None"), default=field.default, **said)


def check_options(**options: object) -> None:
    """What a worker of a program is told. A mistake must not show when it stops, or kill it at the first busy moment."""
    for one in settings_of(WorkerSettings):
        if one.python in options:
            one.checked(options[one.python], one.python)


def choose_dsn(given: str | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Take the DSN that was given, else FAULTLINE_DSN, else DATABASE_URL, else raise with the choices."""
    variables = os.environ if environ is None else environ
    (setting,) = (one for one in settings_of(CommonSettings) if one.name == "dsn")
    dsn = given or next(filter(None, map(variables.get, setting.variables)), None)
    if dsn:
        return dsn
    raise ConfigError(
        "no database is configured: pass --dsn, set FAULTLINE_DSN or DATABASE_URL, or in a program write "
        "Faultline('postgresql://user@host/db'). FAULTLINE_DSN=embedded: uses a private PostgreSQL in this folder"
    )


def choose_timeout(given: float | None = None, environ: Mapping[str, str] | None = None) -> float | None:
    """Take the seconds that were given, else FAULTLINE_TIMEOUT, else the default. None as the answer: no limit."""
    variables = os.environ if environ is None else environ
    (setting,) = (one for one in settings_of(CommonSettings) if one.name == "timeout")
    seconds: float = setting.default
    if given is not None:
        seconds = setting.read(given, "timeout")
    elif written := variables.get("FAULTLINE_TIMEOUT"):
        seconds = setting.read(written, "FAULTLINE_TIMEOUT")
    return None if math.isinf(seconds) else seconds


def whole(what: str, given: object, least: int = 1) -> int:
    """A number of things. True is one for Python, and a mistake for us."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= least:
        return given
    raise ConfigError(f"{what} is {given!r}; it must be a whole number of at least {least}")


def without_password(dsn: str) -> str:
    """Show a DSN to people and logs."""
    # Up to the last @: a password with one of its own would otherwise be shown in part.
    hidden = re.sub(r"(:/*[^:/@\s]*):.*@", r"\1:***@", dsn, flags=re.DOTALL)
    # Without an @, what stands where the port is may be a password: a port is a number.
    hidden = re.sub(r"^(\w+:/*[^:/@\s\[]*):(?![\d,]*([/?,:]|$))[^/?@\s]+", r"\1:***", hidden)
    return re.sub(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|(?:[^\s\\]|\\.)+)", r"\1***", hidden, flags=re.IGNORECASE)
