"""The command that runs jobs."""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from faultline.core.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from faultline.runtime.client import Faultline
    from faultline.runtime.worker import Worker


def worker(
    application: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the tasks are, for example shop.jobs:app")],
    queue: Annotated[list[str] | None, typer.Option(help="NAME or NAME=CONCURRENCY; may be repeated. Default: all.")] = None,
    processes: Annotated[int, typer.Option(min=1, max=256, help="Worker processes under one parent.")] = 1,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to finish running jobs after SIGTERM.")] = 30.0,
    metrics_port: Annotated[int | None, typer.Option(min=1, max=65535, help="Serve metrics for Prometheus here.")] = None,
    metrics_host: Annotated[str, typer.Option(help="On this address; 0.0.0.0 for all, as in a container.")] = "127.0.0.1",
    report_folder: Annotated[Path | None, typer.Option(hidden=True, help="Tell the parent process what was done.")] = None,
    quiet: Annotated[bool, typer.Option(help="Do not log events to standard error.")] = False,  # noqa: FBT002
) -> None:
    """Run jobs until SIGTERM or Ctrl-C. A second signal ends at once."""
    from faultline.core.events import log_events  # noqa: PLC0415 - late, so that --help is quick
    from faultline.runtime.process import Supervisor, run_until_signalled  # noqa: PLC0415

    app = load(application)
    queues = dict(_queue(text) for text in queue or []) or app.queues()
    if not quiet:
        log_events()
    with contextlib.ExitStack() as stack:
        if processes == 1:

            def make() -> Worker:
                worker = app.worker(queues, grace_seconds=grace)
                if metrics_port is not None:
                    stack.enter_context(_metrics().serve(_metrics().Exposition(worker.report), metrics_host, metrics_port))
                if report_folder is not None:
                    stack.enter_context(_metrics().report_to(report_folder, worker.report))
                return worker

            run_until_signalled(make)
            app.close()
            return
        app.database.facts()  # a mistake in the DSN is told once, not by every child
        words = [word for name, concurrency in queues.items() for word in ("--queue", f"{name}={concurrency}")]
        command = [sys.executable, "-m", "faultline", "worker", application, *words, "--grace", str(grace)]
        command += ["--quiet"] if quiet else []
        if metrics_port is None:
            code = Supervisor(command, processes).run()
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faultline-metrics-")))
            reports = _metrics().Reports(folder)
            # Before any child: a port that is taken is told at once.
            stack.enter_context(_metrics().serve(_metrics().Exposition(reports.summed), metrics_host, metrics_port))
            supervisor = Supervisor([*command, "--report-folder", str(folder)], processes)
            reports.alive = lambda: supervisor.pids
            code = supervisor.run()
        app.close()
        raise typer.Exit(code)


def _metrics() -> ModuleType:
    try:
        from faultline import metrics  # noqa: PLC0415 - an extra that most do without
    except ModuleNotFoundError as error:
        raise ConfigError("metrics need prometheus-client; run: pip install 'faultline-queue[metrics]'") from error
    return metrics


def load(application: str) -> Faultline:
    """Import MODULE:APP, with the current folder on the path."""
    from faultline.runtime.client import Faultline  # noqa: PLC0415

    module_name, _, name = application.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise
        raise ConfigError(
            f"there is no module {module_name} in {Path.cwd()}; name it as in `import {module_name}`"
        ) from error
    app = getattr(module, name or "app", None)
    if not isinstance(app, Faultline):
        raise ConfigError(f"{module_name} has no Faultline application named {name or 'app'}; write MODULE:NAME")
    return app


def _queue(text: str) -> tuple[str, int]:
    from faultline.runtime.client import CONCURRENCY  # noqa: PLC0415

    name, _, number = text.partition("=")
    if not name or (number and (not number.isdigit() or int(number) < 1)):
        raise ConfigError(f"--queue {text}: write NAME or NAME=CONCURRENCY, for example mail=50")
    return name, int(number or CONCURRENCY)
