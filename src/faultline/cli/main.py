"""`faultline`: the commands, and how their errors are shown: as a sentence, not a traceback."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from faultline.cli import database, doctor, jobs, keys, others, queues, serve, settings, top, up, work
from faultline.core.errors import ConfigError, FaultlineError, Unprepared
from faultline.core.settings import File

#: Longer than any first sentence: it is wrapped, not cut.
_SENTENCE = 200


class Sections(TyperGroup):
    """The list of commands by what they are about. Plain text: Rich's panels would double the time that help takes.

    Commands of other distributions are looked for when somebody asks for one, or for the list.
    """

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        context = super().make_context(info_name, args, parent, **extra)
        File.of(Path.cwd()).apply(os.environ)
        return context

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *others.installed()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is None and cmd_name not in others.installed():
            others.refuse_missing(cmd_name)
        return own or others.installed().get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the framework's signature
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in {**self.commands, **others.installed()}.items():
            if not command.hidden:
                about = str(getattr(command, "rich_help_panel", "Commands"))
                sections.setdefault(about, []).append((f"{name:<9}", command.get_short_help_str(_SENTENCE)))
        for about, rows in sections.items():
            with formatter.section(about):
                formatter.write_dl(rows)


app = typer.Typer(
    name="faultline",
    cls=Sections,
    help="Background jobs on PostgreSQL that stay correct when things go wrong.",
    epilog="`faultline COMMAND --help` shows the options and examples of a command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:  # noqa: FBT001 - the framework's signature
    if asked:
        from faultline.core.build import version  # noqa: PLC0415 - late, so that --help is quick

        print(f"faultline {version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


JOBS, RUNNING, DATABASE = "Jobs", "Running", "Database"
app.command(rich_help_panel=JOBS)(jobs.enqueue)
app.command(rich_help_panel=JOBS)(jobs.jobs)
app.command(rich_help_panel=JOBS)(jobs.job)
app.command(rich_help_panel=JOBS)(jobs.cancel)
app.command(rich_help_panel=JOBS)(jobs.retry)
app.command(rich_help_panel=RUNNING)(work.worker)
app.command(rich_help_panel=RUNNING)(serve.serve)
app.add_typer(keys.keys, name="api-keys", rich_help_panel=RUNNING)
app.add_typer(queues.queues, name="queues", rich_help_panel=RUNNING)
app.command(rich_help_panel=RUNNING)(queues.workers)
app.command(rich_help_panel=RUNNING)(top.top)
app.command(rich_help_panel=RUNNING)(up.up)
app.command(rich_help_panel=DATABASE)(database.migrate)
app.command(rich_help_panel=DATABASE)(doctor.doctor)
app.command(rich_help_panel=DATABASE)(settings.settings)
app.command(rich_help_panel=DATABASE)(database.recover)
app.add_typer(database.db, name="db", rich_help_panel=DATABASE)


def main() -> None:
    try:
        app()
        sys.stdout.flush()
    except FaultlineError as error:
        print(f"faultline: {error}", file=sys.stderr)
        # As the framework does it for options: 2 is for words that make no sense, whenever they are said.
        sys.exit(2 if isinstance(error, ConfigError) and not isinstance(error, Unprepared) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _leave_quietly()
    except Exception as error:
        told = _refused_by_the_server(error)
        if told is None:
            raise
        sys.exit(f"faultline: {told}")


def _leave_quietly() -> None:
    """The reader closed the pipe, as in `faultline jobs | head`. Python's own flush at exit must not complain either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)


def _refused_by_the_server(error: Exception) -> str | None:
    """PostgreSQL's own message, where Faultline has no error class for it."""
    if not type(error).__module__.startswith("psycopg"):
        return None
    return str(error).strip().partition("\n")[0]
