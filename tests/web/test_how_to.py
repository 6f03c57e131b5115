"""The pages on limits, uniqueness and schedules tell the truth: their programs and commands run as printed."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from faultline import BlockingJob, Faultline, Job, Limit, Rate, Unique
from faultline.testing import drain, frozen_time
from tests.cli.commands import faultline
from tests.web.schedule_scenes import declared, made, ticked

if TYPE_CHECKING:
    from tests.driver import Clock, Driver
    from tests.web.conftest import Api

PAGES = Path(__file__).parents[2] / "docs/how-to"
#: An argument of each kind that a task of these pages takes.
SAMPLES: dict[str, Any] = {"int": 7, "str": "eu", "list[str]": ["milk"], "datetime": datetime(2026, 11, 17, tzinfo=UTC)}


class Provider:
    def send(self, to: str) -> None: ...


async def answered(text: str) -> str:
    return text


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)


def titled(block: str) -> str:
    found = re.search(r"def (\w+)|app\.\w+\.\w+", block)
    return found[0] if found else block[:40]


PROGRAMS = [
    pytest.param(block, id=f"{page}: {titled(block)}")
    for page in ("limits", "unique", "schedules")
    for block in blocks(page, "python")
    # A piece of a program is not one.
    if "app." in block
]


def run(block: str, app: Faultline) -> None:
    words: dict[str, Any] = {
        "app": app, "Limit": Limit, "Rate": Rate, "Unique": Unique, "Job": Job, "BlockingJob": BlockingJob,
        "datetime": datetime, "provider": Provider(), "load": answered, "ask": answered, "count_tokens": len,
    }  # fmt: skip
    if "digest.bind" in block:

        @app.task
        def digest(user: int) -> None: ...

        words["digest"] = digest
    exec(compile(block, "page", "exec"), words)  # noqa: S102 - it is our own page


@pytest.mark.parametrize("block", PROGRAMS)
def test_a_program_runs_as_printed(app: Faultline, block: str) -> None:
    """Its queues and schedules are declared, and a job of each of its tasks succeeds."""
    run(block, app)
    app.declare()
    declared = app.schedule_declarations()

    with frozen_time(app) as time:
        handles = [
            task.enqueue(*(SAMPLES[str(one.annotation)] for one in task.signature.parameters.values()))
            for task in app.tasks.values()
            if task.name != "digest"
        ]
        drain(app, advancing=time)
        ended = [handle.job() for handle in handles]

    assert handles or "app.schedules" in block
    assert [(job.task, job.state, job.last_error) for job in ended if job.state != "succeeded"] == []
    assert len(declared) == len(re.findall(r"@app\.schedule\(", block))


def commands(page: str) -> list[str]:
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [line.partition(" #")[0].strip() for line in lines]


@pytest.mark.parametrize("page", ["limits", "schedules"])
def test_the_commands_run_as_printed(queue: Driver, dsn: str, page: str) -> None:
    declared(queue, "report")
    typed = [shlex.split(line) for line in commands(page) if line.startswith("faultline ")]

    said = [faultline(*words, "--dsn", dsn) for _, *words in typed]

    assert len(typed) >= 3
    assert [(ran.args, ran.stderr) for ran in said if ran.returncode != 0] == []


def test_the_request_that_sets_a_schedule_works_as_printed(api: Api) -> None:
    (line,) = [line for line in commands("schedules") if line.startswith("curl ")]
    words = shlex.split(line)
    path = re.sub(r"^https://[^/]+", "", words[3])

    answer = api.http.put(path, json=json.loads(words[words.index("-d") + 1]))

    assert answer.json() == {"name": "digest-42", "queue": "default", "changed": True, "warnings": []}


def test_the_bodies_of_the_reference_work_as_printed(api: Api) -> None:
    page = (PAGES.parent / "reference/http.md").read_text()
    section = page[page.index("### Bodies") : page.index("**Order.**")]
    sent = re.findall(r"^(POST|PUT) (/api/v1/\S+)\n(\{.*?\})$", section, re.DOTALL | re.MULTILINE)

    answers = [api.http.request(method, path, json=json.loads(body)) for method, path, body in sent]

    assert len(answers) == 7
    assert [(answer.url, answer.text) for answer in answers if answer.status_code >= 300] == []
    assert api.http.get("/api/v1/queues/mail/limits").json()["limits"][0]["effective"]["burst"] == 20


def test_the_rule_of_a_schedule_is_tested_as_printed(app: Faultline) -> None:
    (block,) = [block for block in blocks("testing", "python") if "app.schedules.next" in block]

    words: dict[str, Any] = {"app": app}
    exec(compile(block, "page", "exec"), words)  # noqa: S102 - it is our own page
    words["test_the_report_runs_on_weekdays_at_nine"]()


def test_ended_schedules_are_removed_as_printed(app: Faultline, queue: Driver, clock: Clock) -> None:
    page = (PAGES / "schedules.md").read_text()
    (line,) = re.findall(r"`(\[app\.schedules\.remove.*?\])`", page, re.DOTALL)
    made(queue, "once", at=made(queue, "other").clock + timedelta(minutes=1))
    clock.advance(61)
    ticked(queue)
    assert [one.state for one in app.schedules.list()] == ["ended", "active"]

    eval(line, {"app": app})  # noqa: S307 - it is our own page

    assert [one.name for one in app.schedules.list()] == ["other"]
