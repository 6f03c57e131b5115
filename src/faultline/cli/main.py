"""`faultline`: the list of commands. Shows errors as a sentence, not a traceback."""

from __future__ import annotations

import inspect
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from faultline.cli import plugins
from faultline.core.errors import ConfigError, FaultlineError, SetupError
from faultline.core.settings_file import File

#: Longer than any first sentence of a help text, so that none is cut.
_SENTENCE = 200


#: The commands by section, and where each is defined. A module is imported only to run its command or to list all: importing
#: all of them takes longer than most commands.
SECTIONS = {
    "Jobs": {
        "enqueue": "enqueue.enqueue",
        "jobs": "jobs.jobs",
        "job": "jobs.job",
        "cancel": "jobs.cancel",
        "retry": "jobs.retry",
        "undo": "jobs.undo",
        "flow": "flows.flow",
        "fork": "flows.fork",
        "signal": "flows.signal",
        "waiting": "flows.waiting",
    },
    "Running": {
        "worker": "worker.worker",
        "serve": "serve.serve",
        "api-keys": "keys.keys",
        "queues": "queues.queues",
        "limits": "limits.limits",
        "groups": "limits.groups",
        "schedules": "schedules.schedules",
        "workers": "queues.workers",
        "top": "top.top",
        "up": "up.up",
    },
    "Database": {
        "migrate": "database.migrate",
        "doctor": "doctor.doctor",
        "settings": "settings.settings",
        "recover": "database.recover",
        "db": "database.db",
    },
}
_MODULES = {name: where for commands in SECTIONS.values() for name, where in commands.items()}


class Sections(TyperGroup):
    """Lists the commands by section. Plain text: Rich's panels would double the time of `--help`."""

    _without_options = False

    def __init__(self, **words: Any) -> None:
        # The framework suggests one of these names for a mistyped one.
        super().__init__(**{**words, "commands": dict.fromkeys(_MODULES)})

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        context = super().make_context(info_name, args, parent, **extra)
        File.here().apply(os.environ)
        return context

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Skip our own options if the first word is a command. To read them, the framework would import a library that takes
        longer than all the rest of `faultline COMMAND --help`.
        """
        self._without_options = bool(args) and not args[0].startswith("-")
        try:
            return super().parse_args(ctx, args)
        finally:
            self._without_options = False

    def get_params(self, ctx: Any) -> list[Any]:
        return [] if self._without_options else list(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *plugins.installed()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the framework's signature
        if cmd_name not in _MODULES and cmd_name not in plugins.installed():
            plugins.refuse_missing(cmd_name)
            return None
        return _built(cmd_name, _defined(cmd_name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the framework's signature
        sections = {**SECTIONS, plugins.SECTION: dict.fromkeys(plugins.installed(), "")}
        for about, commands in sections.items():
            rows = [(f"{name:<9}", _sentence(_defined(name))) for name in commands]
            if rows:
                with formatter.section(about):
                    formatter.write_dl(rows)


def _defined(name: str) -> Any:
    """The function of a command, or its group."""
    if name not in _MODULES:
        return plugins.installed()[name].load()
    module, _, attribute = _MODULES[name].partition(".")
    return getattr(import_module(f"faultline.cli.commands.{module}"), attribute)


def _built(name: str, defined: Any) -> Any:
    if not isinstance(defined, typer.Typer):
        function, defined = defined, typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        defined.command(name)(function)
    built = get_command(defined)
    built.name = name
    return built


def _sentence(defined: Any) -> str:
    """The first sentence of its help."""
    if isinstance(defined, typer.Typer):
        own = defined.registered_callback
        text = inspect.getdoc(own.callback) if own else defined.info.help
    else:
        text = inspect.getdoc(defined)
    return TyperCommand(None, help=text).get_short_help_str(_SENTENCE)


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


def main() -> None:
    try:
        app()
        sys.stdout.flush()
    except FaultlineError as error:
        print(f"faultline: {error}", file=sys.stderr)
        # 2 is for invalid input, as the framework does it for options.
        sys.exit(2 if isinstance(error, ConfigError) and not isinstance(error, SetupError) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _leave_quietly()
    except Exception as error:
        refusal = _refused_by_the_server(error)
        if refusal is None:
            raise
        sys.exit(f"faultline: {refusal}")


def _leave_quietly() -> None:
    """The reader closed the pipe, as in `faultline jobs | head`. Python's flush at exit must not print an error either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(141)


def _refused_by_the_server(error: Exception) -> str | None:
    """PostgreSQL's message, where Faultline has no error class for it."""
    if not type(error).__module__.startswith("psycopg"):
        return None
    return str(error).strip().partition("\n")[0]
