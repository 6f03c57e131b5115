"""The command that runs jobs."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from faultline.cli.setting_options import taking
from faultline.core.errors import ConfigError, SetupError
from faultline.core.settings import WorkerSettings, queue_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from faultline.app.application import Faultline
    from faultline.core.events import LogForm
    from faultline.worker.worker import Worker

_FOLDER = "faultline-processes-"


@taking(WorkerSettings)
def worker(
    application: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application, for example shop.jobs:app")],
    settings: WorkerSettings,
    report_folder: Annotated[Path | None, typer.Option(hidden=True, help="Report the counts to the parent process.")] = None,
    health_memory: Annotated[int | None, typer.Option(hidden=True, help="Share this file with the parent process.")] = None,
    parent: Annotated[int | None, typer.Option(hidden=True, help="Stop when this pipe of the parent closes.")] = None,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C. A second signal stops at once.

    Each option can also be set by an environment variable, --grace by FAULTLINE_WORKER_GRACE, or under [worker] in
    faultline.toml.
    """
    from faultline.core.events import log_events  # noqa: PLC0415 - late, so that --help is quick

    app = load(application)
    queues = dict(filter(None, map(queue_of, settings.queue or []))) or app.queues()
    if not settings.quiet:
        log_events(form=cast("LogForm", settings.log_format))
    if parent is not None:  # one of several processes: these settings of the file or environment are for the parent
        settings = replace(settings, processes=1, metrics_port=None, health_port=None)
    serving = _Serving(settings, report_folder, health_memory)
    if settings.processes == 1:
        raise typer.Exit(_run_one(app, lambda: app.worker(queues, **settings.options()), serving, parent))
    _reach(app)
    code = _run_several([*_named(application, queues), *settings.words()], serving)
    app.close()
    raise typer.Exit(code)


def _named(application: str, queues: dict[str, int]) -> list[str]:
    """The command line of one of several processes."""
    named = [word for name, concurrency in queues.items() for word in ("--queue", f"{name}={concurrency}")]
    return [sys.executable, "-m", "faultline", "worker", application, *named]


def _reach(app: Faultline) -> None:
    import asyncio  # noqa: PLC0415 - late, so that --help is quick

    from faultline.worker.base.databases import check_reachable  # noqa: PLC0415

    asyncio.run(check_reachable(app))


@dataclass(frozen=True, slots=True)
class _Serving:
    """Where to serve metrics and health, and where to report them."""

    settings: WorkerSettings
    report_folder: Path | None
    health_memory: int | None

    def health_socket(self) -> socket.socket | None:
        host, port = self.settings.health_host, self.settings.health_port
        if port is None:
            return None
        from faultline.core.forks import keep_from_forks  # noqa: PLC0415

        try:
            return keep_from_forks(socket.create_server((host, port)))
        except OSError as error:
            advice = "choose another --health-host or --health-port"
            raise SetupError(f"cannot serve health at {host}:{port}: {error}; {advice}") from error


def _run_one(app: Faultline, make: Callable[[], Worker], serving: _Serving, parent: int | None) -> int:
    from faultline.worker.base.force_exit import CLOSE_SECONDS, end_after  # noqa: PLC0415
    from faultline.worker.process import run_until_signalled  # noqa: PLC0415

    stack, settings = contextlib.ExitStack(), serving.settings
    health = serving.health_socket()

    def made() -> Worker:
        worker = make()
        worker.health, worker.health_memory = health, serving.health_memory
        if settings.metrics_port is not None:
            exposition = _metrics().Exposition(worker.report)
            stack.enter_context(_metrics().serve(exposition, settings.metrics_host, settings.metrics_port))
        if serving.report_folder is not None:
            stack.enter_context(_metrics().report_to(serving.report_folder, worker.report))
        return worker

    def leave() -> None:
        stack.close()
        app.close()

    try:
        code = run_until_signalled(made, parent=parent, leave=leave)
    finally:
        leave()
    # Python's exit would wait for threads that a task left behind.
    end_after(CLOSE_SECONDS, code)
    return code


def _run_several(command: list[str], serving: _Serving) -> int:
    from faultline.worker.companion import health  # noqa: PLC0415
    from faultline.worker.process import Supervisor  # noqa: PLC0415

    settings = serving.settings
    with contextlib.ExitStack() as stack:
        # Before any child, so that a port in use is reported at once.
        listening = serving.health_socket()
        alive: list[Supervisor] = []
        if listening is not None:
            stack.callback(listening.close)
        if settings.metrics_port is not None:
            folder = stack.enter_context(_folder_of_children())
            command = [*command, "--report-folder", str(folder)]
            reports = _metrics().Reports(folder)
            reports.alive = lambda: alive[0].pids if alive else set()
            exposition = _metrics().Exposition(reports.summed)
            stack.enter_context(_metrics().serve(exposition, settings.metrics_host, settings.metrics_port))
        supervisor = Supervisor(command, settings.processes, shares_memory=listening is not None)
        alive.append(supervisor)
        if listening is not None:
            children = health.Children(lambda: supervisor.memories)
            health.serve(listening, children.workers, expected=settings.processes, dying=lambda: supervisor.dying)
        return supervisor.run()


@contextlib.contextmanager
def _folder_of_children() -> Iterator[Path]:
    """The folder where children report to the parent. The parent holds a lock on it, which ends with its process: the next
    parent removes the folder of one that was killed.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        with contextlib.suppress(OSError):  # in use, gone, or owned by another user
            lock = _opened(left)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)
            finally:
                os.close(lock)
    folder, lock = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        with contextlib.suppress(FileNotFoundError):
            lock = _opened(folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)  # another parent removed it before it was locked


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _metrics() -> ModuleType:
    try:
        from faultline.integrations import prometheus  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SetupError("metrics need prometheus-client; run: pip install 'faultline-queue[metrics]'") from error
    return prometheus


def load(application: str) -> Faultline:
    """Import MODULE:APP, with the current folder on the import path."""
    from faultline.app.application import Faultline  # noqa: PLC0415

    module_name, _, name = application.partition(":")
    if not module_name or module_name.startswith("."):
        raise ConfigError(f"invalid application {application!r}; write MODULE:APP, for example shop.jobs:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise
        advice = f"write it as in `import {module_name.removesuffix('.py').replace('/', '.')}`"
        raise ConfigError(f"no module {module_name} in {Path.cwd()}; {advice}") from error
    app = getattr(module, name or "app", None)
    if not isinstance(app, Faultline):
        raise ConfigError(f"{module_name} has no Faultline application named {name or 'app'}; write MODULE:NAME")
    return app
