"""Options of commands that the catalogue of settings has (`core/settings.py`)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from faultline.core.settings import Setting, read, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = Callable[..., None]

_METAVARS = {"int": "NUMBER", "float": "SECONDS", "str": "TEXT"}
#: As the framework is to read them. Numbers are read by the catalogue, which knows where they came from.
_TYPES: dict[str, Any] = {"bool": bool | None, "list[str]": list[str] | None}


def taking(kind: type) -> Callable[[Command], Command]:
    """Give a command the options of these settings. It is called with their values as `settings`."""
    return _with_options(kind, lambda given: read(kind, given))


def changing(kind: type) -> Callable[[Command], Command]:
    """The same for a command that changes settings: it is called with those that were given, as they were written."""
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
    # The framework adds the opposite of a flag, if it is to find the name itself: a file may say true.
    names = () if setting.kind == "bool" else (setting.option,)
    option = typer.Option(*names, metavar=metavar, help=help_of(setting))
    annotation: Any = Annotated[_TYPES.get(setting.kind, str | None), option]
    return inspect.Parameter(setting.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)


def help_of(setting: Setting) -> str:
    """The sentence of the catalogue, with the default where there is one to name."""
    unnamed = setting.default is None or setting.kind == "bool"
    return setting.about if unnamed else f"{setting.about} Default: {setting.shown_default}."
