"""The file of a folder, and what a command is to do: its words count most, then the environment, then the file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from faultline.core.errors import ConfigError
from faultline.core.settings import TABLES, CommonSettings, settings_of, shown_as

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

T = TypeVar("T")
#: Where a project file may have our table, in all ways that TOML has to write it. Most have none, and need not be read.
_TOOL_TABLE = re.compile(r"""^\s*(\[\s*tool\s*\]|\[?\s*tool\s*\.\s*['"]?faultline['"]?\s*[].])""", re.MULTILINE)


def read(
    kind: type[T], words: Mapping[str, object], *, folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> T:
    """The settings of a command: from its words, else the environment, else the file, else their defaults."""
    variables = os.environ if environ is None else environ
    (table,) = (name for name, of in TABLES.items() if of is kind)
    file = File.here() if folder is None else File.of(folder)
    found = {}
    for one in settings_of(kind):
        said = [(one.option, words.get(one.name)), *((name, variables.get(name) or None) for name in one.variables)]
        said.append((file.where(one.name, table), file.table(table).get(one.name)))
        for where, written in said:
            if written is not None:
                found[one.name] = one.read(written, where)
                break
    return kind(**found)


class File(NamedTuple):
    """`faultline.toml` of a folder, or else `[tool.faultline]` of its `pyproject.toml`:

    dsn = "postgresql://…"

    [worker]
    grace = 60
    queue = ["mail=50", "default"]
    """

    path: Path | None
    content: dict[str, Any]

    @classmethod
    def here(cls) -> File:
        """That of the current folder, which may be gone."""
        try:
            return cls.of(Path.cwd())
        except FileNotFoundError:
            return cls(None, {})

    @classmethod
    def of(cls, folder: Path) -> File:
        for name, tables in (("faultline.toml", ()), ("pyproject.toml", ("tool", "faultline"))):
            path = folder / name
            text = _text_of(path, is_ours=not tables)
            if text is None or (tables and not _TOOL_TABLE.search(text)):
                continue
            found = _toml(path, text)
            for table in tables:
                found = found.get(table, {})
                if not isinstance(found, dict):
                    raise ConfigError(
                        f"{table} in {path} is {shown_as(found, secret=True)}; it must be a table: [tool.faultline]"
                    )
            if tables and not found:
                continue
            return cls(path, found)
        return cls(None, {})

    def table(self, name: str) -> dict[str, Any]:
        return _plain(self.content.get(name, {}))

    def where(self, key: str, table: str = "") -> str:
        """How a message names this key."""
        inside = "tool.faultline" if self.path and self.path.name == "pyproject.toml" else ""
        name = ".".join(filter(None, (inside, table)))
        return f"{key} in {f'[{name}] of ' if name else ''}{self.path}"

    def apply(self, variables: MutableMapping[str, str]) -> None:
        """Refuse what would never take effect, and let `dsn` and `timeout` stand in the environment, for every program."""
        common = {one.name: one for one in settings_of(CommonSettings)}
        content = _plain(self.content)
        self._refuse_unknown(self.content, [*common, *TABLES])
        for table, kind in TABLES.items():
            if not isinstance(self.content.get(table, {}), dict):
                raise ConfigError(
                    f"{self.where(table)} is {shown_as(self.content[table], secret=True)}; it must be a table: [{table}]"
                )
            known = {one.name: one for one in settings_of(kind)}
            self._refuse_unknown(self.content.get(table, {}), list(known), table)
            for key, value in self.table(table).items():
                known[key].read(value, self.where(key, table))
        for name, one in common.items():
            if name in content:
                value = one.read(content[name], self.where(name))
                if not any(variables.get(variable) for variable in one.variables):
                    variables[one.variables[0]] = str(value)

    def _refuse_unknown(self, given: Mapping[str, Any], known: list[str], table: str = "") -> None:
        plain = [key.replace("-", "_") for key in given]
        for key in plain:
            if plain.count(key) > 1:
                raise ConfigError(f"{self.where(key, table)} stands there twice, with - and with _; keep one")
            if key not in known:
                from difflib import get_close_matches  # noqa: PLC0415 - late: it is rarely needed

                near = get_close_matches(key, known, n=1)
                advice = f"did you mean {near[0]}?" if near else f"it may have {', '.join(known)}"
                raise ConfigError(f"unknown setting {self.where(key, table)}; {advice}")


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys may be written as options are: health-port."""
    return {key.replace("-", "_"): value for key, value in given.items()}


def _text_of(path: Path, *, is_ours: bool) -> str | None:
    """None if there is no such file, or if it is none of ours and cannot be read."""
    try:
        return path.read_bytes().decode().removeprefix("\ufeff")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        # In a folder of somebody else's (`sudo -u postgres` in /root), we cannot know whether there is a file.
        if not is_ours or not os.access(path.parent, os.X_OK):
            return None
        if isinstance(error, UnicodeDecodeError):
            raise ConfigError(f"{path} is not UTF-8; save it as UTF-8") from error
        raise ConfigError(f"{path} cannot be read: {error.strerror}; let this user read it, or remove it") from error


def _toml(path: Path, text: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - late: most folders have no such file

    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError is one
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is not valid TOML: it is nested too deeply") from error
