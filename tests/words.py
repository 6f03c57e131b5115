"""Read a line of the command line against the real commands, without running anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer.main

from faultline.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def check_words(words: Sequence[str]) -> None:
    """Raise unless `faultline WORDS` names a command and options that exist."""
    command: Any = typer.main.get_command(app)
    context = None
    rest = list(words)
    while True:
        group = hasattr(command, "commands")
        context = command.make_context(command.name, rest, parent=context)
        if not group or not context._protected_args:  # noqa: SLF001 - the framework's way to hand words on
            return
        _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])  # noqa: SLF001


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that can be run, with its full name."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        inner = command.list_commands(None) if hasattr(command, "list_commands") else []
        if not inner or command.invoke_without_command:
            yield name, command
        for word in inner:
            yield from walk(f"{name} {word}".strip(), command.get_command(None, word))

    yield from walk("", typer.main.get_command(app))
