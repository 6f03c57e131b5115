"""The parts of docs/reference.md that the code already says: `python -m tests.reference` writes them anew.

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`; everything else in the file is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import logging
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faultline
from faultline.core.errors import FaultlineError
from faultline.core.events import LEVELS
from tests.words import commands

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from prometheus_client import Metric

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs/reference.md"
#: Public for Faultline's own modules, and no promise to anybody else.
INNER = {
    "abandon", "async_database", "check", "database", "enqueued", "fn", "handles", "host", "is_async", "poller", "signature",
    "takes_job", "timed_out",
}  # fmt: skip
ROLES = ("producer", "worker", "viewer", "operator")


def python_names() -> str:
    """Every public name, with the first line of what it says of itself."""
    lines = ["| name | |", "|---|---|"]
    for name in sorted(faultline.__all__, key=str.lower):
        found = getattr(faultline, name)
        lines.append(f"| `{name}` | {_first_line(found)} |")
    return "\n".join(lines)


def _first_line(found: Any) -> str:
    if isinstance(found, type) and issubclass(found, FaultlineError) and found is not FaultlineError:
        tree = inspect.getmodule(FaultlineError)
        assert tree is not None
        told = re.search(rf"[├└]── {found.__name__}[ ]*(?:\(FL\d+\))?[ ]*(.*)", tree.__doc__ or "")
        state = f" (SQLSTATE {found.sqlstate})" if found.sqlstate else ""
        return f"error{state}: {told[1] if told and told[1] else 'the schema is missing, behind, ahead or altered'}"
    if isinstance(found, type) and issubclass(found, StrEnum):
        return ", ".join(f"`{member}`" for member in found)
    return (inspect.getdoc(found) or "").partition("\n")[0].replace("|", "\\|")


def class_members() -> str:
    """What programs use of the classes they meet: attributes and methods, each with its first line."""
    told = []
    for found in (faultline.Faultline, faultline.Task, faultline.JobHandle, faultline.Job, faultline.BlockingJob):
        rows = {name: line for name, line in _members(found).items() if name.partition("(")[0] not in INNER}
        table = [f"| `{name}` | {line} |" for name, line in sorted(rows.items())]
        told.append("\n".join([f"### `{found.__name__}`", "", "| member | |", "|---|---|", *table]))
    return "\n\n".join(told)


def _members(found: type) -> dict[str, str]:
    members: dict[str, str] = {}
    for one in reversed(found.__mro__[:-1]):
        if one.__module__.startswith("faultline."):
            members |= _attributes(one)
            for name, member in vars(one).items():
                function = getattr(member, "func", member)  # of a cached property
                if name.startswith("_") or not (callable(function) or isinstance(member, property)):
                    continue
                awaited = "await " if inspect.iscoroutinefunction(function) else ""
                twin = f"`{name[1:]}` for async programs." if awaited and name[1:] in vars(one) else ""
                line = _first_line(member) or twin
                shown = name if not inspect.isfunction(function) or function is not member else _called_as(one, name)
                members[shown] = f"{f'({awaited.strip()}) ' if awaited else ''}{line}"
    return members


def _called_as(one: type, name: str) -> str:
    """A method with the names of its parameters, those that need not be given with their defaults."""
    from faultline.runtime.worker import Worker  # noqa: PLC0415

    parameters = dict(inspect.signature(getattr(one, name)).parameters)
    if name in ("worker", "run_worker"):  # hands its options on
        parameters = {"self": parameters["self"], **dict(list(inspect.signature(Worker).parameters.items())[1:])}
    shown: list[str] = []
    for parameter in list(parameters.values())[1:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not any(word.startswith("*") for word in shown):
            shown.append("*")
        given = re.sub(r": .*?(?= = |$)", "", str(parameter))
        shown.append(given.replace(" = ", "="))
    return f"{name}({', '.join(shown)})"


def _attributes(one: type) -> dict[str, str]:
    """What the constructor sets and does not begin with an underscore, with the comment `#:` above it."""
    lines = inspect.getsource(one).splitlines()
    found: dict[str, str] = {}
    for number, line in enumerate(lines):
        named = re.match(r" {8}self\.([a-z]\w*)(?:: .*?)? = ", line)
        if named:
            above = list(itertools.takewhile(lambda text: text.strip().startswith("#:"), reversed(lines[:number])))
            told = " ".join(text.strip().removeprefix("#:").strip() for text in reversed(above))
            found.setdefault(named[1], told.replace("|", "\\|"))
    return found


def command_line() -> str:
    """Every command with its arguments and options."""
    parts = []
    for name, command in commands():
        about = (command.help or "").partition("\n\n")[0].replace("\n", " ").strip()
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        usage = " ".join([f"faultline {name}", *(_argument(param) for param in arguments)])
        rows = [
            f"| `{', '.join([*param.opts, *param.secondary_opts])}` | {param.help or ''} |"
            for param in command.params
            if param.param_type_name == "option" and param.name not in ("help", "install_completion", "show_completion")
        ]
        table = ["", "| option | |", "|---|---|", *rows] if rows else []
        parts.append("\n".join([f"### `{usage}`", "", about, *table]))
    return "\n\n".join(parts)


def _argument(param: Any) -> str:
    word = param.metavar or param.name.upper()
    return word if param.required or word.startswith("[") else f"[{word}]"


def http_paths() -> str:
    """Every path of the HTTP service that OpenAPI describes."""
    from faultline.web.app import create_app  # noqa: PLC0415 - an extra

    described = create_app("postgresql://nowhere").openapi()
    lines = ["| | | |", "|---|---|---|"]
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            about = (route.get("description") or route.get("summary") or "").partition("\n")[0].replace("|", "\\|")
            lines.append(f"| `{method.upper()}` | `{path}` | {about} |")
    return "\n".join(lines)


def sql_verbs(connection: psycopg.Connection) -> str:
    """Every function that a role may call, as the catalogue has it."""
    rows = connection.execute(
        "select p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),"
        " array(select r from unnest(%s::text[]) r where has_function_privilege('faultline_' || r, p.oid, 'execute'))"
        " from pg_proc p where p.pronamespace = 'faultline'::regnamespace order by 1, 2",
        (list(ROLES),),
    ).fetchall()
    lines = ["| function | answers | for | |", "|---|---|---|---|"]
    for name, arguments, result, roles in rows:
        if roles:
            who = "everyone" if set(roles) == set(ROLES) else ", ".join(roles)
            takes = _short(re.sub(r"::[\w ]+(\[\])?(?=,|$)", "", arguments))
            lines.append(f"| `{name}({takes})` | `{_short(result)}` | {who} | {_sql_comment(name)} |")
    return "\n".join(lines)


def _short(signature: str) -> str:
    short = signature.replace("timestamp with time zone", "timestamptz").replace("double precision", "float8")
    return re.sub(r"\b(DEFAULT|TABLE|SETOF|NULL)\b", lambda word: word[0].lower(), short)


def _sql_comment(name: str) -> str:
    """The first sentence of a function's file."""
    text = (ROOT / f"src/faultline/schema/functions/{name}.sql").read_text()
    comment = " ".join(line.removeprefix("--").strip() for line in text.partition("create or replace")[0].splitlines())
    return re.split(r"(?<=\.)\s", comment)[0].replace("|", "\\|").strip()


def event_names() -> str:
    """Every event that the package emits, with the fields that are named at the call."""
    found: dict[str, set[str]] = {}
    details: set[str] = set()
    for path in sorted((ROOT / "src/faultline").rglob("*.py")):
        if path.relative_to(ROOT / "src/faultline").parts[0] in ("proof", "bench"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _called(node) in ("emit", "emit_detail", "_warn", "logged") and node.args:
                name = node.args[-1]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    fields = {word.arg for word in node.keywords if word.arg and word.arg not in ("level", "done")}
                    found.setdefault(name.value, set()).update(fields)
                    if _called(node) == "emit_detail":
                        details.add(name.value)
    lines = ["| event | fields | level |", "|---|---|---|"]
    for event, named in sorted(found.items()):
        level = "debug" if event in details else logging.getLevelName(LEVELS.get(event, 0)).lower()
        lines.append(f"| `{event}` | {', '.join(f'`{field}`' for field in sorted(named))} | {level} |")
    return "\n".join(lines)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def metric_names() -> str:
    """Every metric, as a scrape of the API shows it; a worker tells the first of them."""
    lines = ["| metric | | labels | |", "|---|---|---|---|"]
    for family in metrics():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = ", ".join(f"`{label}`" for label in family._labelnames)  # type: ignore[attr-defined]  # noqa: SLF001
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines)


def metrics() -> list[Metric]:
    from faultline.metrics import Exposition  # noqa: PLC0415 - an extra
    from faultline.metrics.board import Checked, Seen  # noqa: PLC0415

    class Empty:
        @staticmethod
        def read() -> Seen:
            return Seen([], [], workers_alive=0, workers_silent=0)

        @staticmethod
        def checked() -> Checked:
            return Checked()

    return list(Exposition(board=Empty()).collect())  # type: ignore[arg-type]


PARTS: dict[str, Callable[[], str]] = {
    "names": python_names,
    "members": class_members,
    "commands": command_line,
    "paths": http_paths,
    "events": event_names,
    "metrics": metric_names,
}


def part(name: str) -> str:
    """What stands in the file under this name."""
    found = re.search(rf"<!-- begin {name} -->\n(.*?)\n<!-- end {name} -->", REFERENCE.read_text(), re.DOTALL)
    assert found is not None, f"docs/reference.md has no part {name}"
    return found[1]


def rewrite(parts: dict[str, str]) -> None:
    text = REFERENCE.read_text()
    for name, content in parts.items():
        before, _, rest = text.partition(f"<!-- begin {name} -->\n")
        after = rest.partition(f"<!-- end {name} -->")[2]
        text = f"{before}<!-- begin {name} -->\n{content}\n<!-- end {name} -->{after}"
    REFERENCE.write_text(text)


def main() -> None:
    import tempfile  # noqa: PLC0415

    import psycopg as driver  # noqa: PLC0415

    from faultline import embedded  # noqa: PLC0415
    from faultline.store import migrate  # noqa: PLC0415

    with (
        tempfile.TemporaryDirectory() as folder,
        embedded.join(Path(folder) / "db", settings={"fsync": "off"}) as server,
        driver.connect(server.dsn, autocommit=True) as connection,
    ):
        migrate.migrate(connection)
        rewrite({**{name: make() for name, make in PARTS.items()}, "verbs": sql_verbs(connection)})


if __name__ == "__main__":
    main()
