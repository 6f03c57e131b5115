"""Build the options of commands from the catalogue of settings (`core/settings.py`)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faultline.core.settings import Setting, settings_of
from faultline.core.settings_file import read

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = Callable[..., None]

_METAVARS = {"int": "NUMBER", "float": "SECONDS", "str": "TEXT"}
#: The types for the framework. The catalogue reads numbers itself, since its messages say where a value came from.
_TYPES: dict[str, Any] = {"bool": bool | None, "list[str]": list[str] | None}


def taking(kind: type) -> Callable[[Command], Command]:
    """Add the options of these settings to a command, which gets their values as `settings`."""
    return _with_options(kind, lambda given: read(kind, given))


def changing(kind: type) -> Callable[[Command], Command]:
    """The same for a command that changes settings: it gets only the given ones, as text."""
    return _with_options(kind, lambda given: {name: value for name, value in given.items() if value is not None})


def _with_options(kind: type, values_of: Callable[[dict[str, Any]], object]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        names = [one.name for one in settings_of(kind)]

        def run(**given: Any) -> None:
            written = {name: given.pop(name) for name in names}
            command(settings=values_of(written), **given)

        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [one for one in own if one.default is one.empty and one.name != "settings"]
        parameters += [_parameter(one) for one in settings_of(kind)]
        parameters += [one for one in own if one.default is not one.empty]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # which the framework reads
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


def _parameter(setting: Setting) -> inspect.Parameter:
    metavar = setting.metavar or _METAVARS.get(setting.kind)
    # Without a name from us the framework adds `--no-…` to a flag, which a file may have switched on.
    names = () if setting.kind == "bool" else (setting.option,)
    option = typer.Option(*names, metavar=metavar, help=help_of(setting))
    annotation: Any = Annotated[_TYPES.get(setting.kind, str | None), option]
    return inspect.Parameter(setting.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def help_of(setting: Setting) -> str:
    """The sentence of the catalogue, with the default if there is one."""
    unnamed = setting.default is None or setting.kind == "bool"
    return setting.about if unnamed else f"{setting.about} Default: {setting.shown_default}."
