"""Options of commands that a file sets: `faultline.toml`, or `[tool.faultline]` of `pyproject.toml`, in the current folder.

dsn = "postgresql://…"

[worker]
grace = 60
queue = ["mail=50", "default"]
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faultline.core.errors import ConfigError
from faultline.core.settings import in_file

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

#: What programs read from the environment as well: what a file says counts less.
_VARIABLES = {"dsn": ("FAULTLINE_DSN", "DATABASE_URL"), "timeout": ("FAULTLINE_TIMEOUT",)}


def options(
    commands: Mapping[str, Any], folder: Path | None = None, environ: MutableMapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """By command and the name of its parameter. A name that no command has is an error: it would never take effect."""
    variables = os.environ if environ is None else environ
    found: dict[str, dict[str, Any]] = {}
    for name, value in in_file(folder or Path.cwd()).items():
        if name in _VARIABLES:
            first, *others = _VARIABLES[name]
            if not any(variables.get(other) for other in (first, *others)):
                variables[first] = str(value)
        elif name in commands and isinstance(value, dict):
            found[name] = _of_command(name, commands[name], value)
        else:
            raise ConfigError(
                f"the settings file has {name!r}; it may have dsn, timeout and a table for a command, as [worker]"
            )
    return found


def _of_command(name: str, command: Any, table: dict[str, Any]) -> dict[str, Any]:
    known = {param.name for param in command.params if param.param_type_name == "option" and not param.hidden}
    given = {option.replace("-", "_"): value for option, value in table.items()}
    unknown = sorted(given.keys() - known)
    if unknown:
        raise ConfigError(f"the settings file sets {unknown[0]!r} for {name}; its options are {', '.join(sorted(known))}")
    return given
