"""Read JSON, check what no schema can express, and tell names in paths from what follows them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor

from faultline.web.api.shapes import Refusal
from faultline.web.auth.access import admit
from faultline.web.server.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

JSON_DEPTH_MAX = 64
#: What stands behind the name of a schedule. A name that ends in one of these would be taken for that path.
SCHEDULE_PATHS = ("ticks", "pause", "resume", "reset", "run", "backfill")
#: The most characters of a 64-bit integer: digits and a sign.
_INTEGER_LENGTH_MAX = 20


def _described(what: str) -> dict[str, Any]:
    shape = {"$ref": "#/components/schemas/Refusal"}
    return {"model": Refusal, "description": what, "content": {"application/problem+json": {"schema": shape}}}


#: The errors that any route may return.
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: _described("Invalid JSON, or an invalid cursor."),
    401: _described("No API key, or one that is unknown, expired or revoked."),
    403: _described("The key lacks the scope, or is restricted to other queues."),
    404: _described("No such job, or this key may not see it."),
    405: _described("Method not allowed."),
    408: _described("The body did not arrive in time."),
    409: _described("The Idempotency-Key was used with another body, or the job's state does not allow this."),
    413: _described("The body is too large."),
    422: _described("The request does not match its description."),
    429: _described("Too many requests; Retry-After says when."),
    500: _described("Internal server error."),
    503: _described("The database is unavailable, or the outcome is unknown."),
    504: _described("The database took too long."),
}


class _ScheduleName(Convertor[str]):
    """May contain slashes. Otherwise `PUT /schedules/a/pause` would be about a schedule named `a/pause`, and not a method
    that this path does not have.
    """

    regex = ".+" + "".join(f"(?<!/{path})" for path in SCHEDULE_PATHS)

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


class _LimitedQueue(_ScheduleName):
    """Otherwise `PUT /queues/a/limits/b/limits` would be about a queue `a/limits/b`, and not about the group `b/limits`."""

    regex = "(?:(?!/limits(?:/|$)).)+"


register_url_convertor("schedule", _ScheduleName())
register_url_convertor("limited", _LimitedQueue())


class CheckedRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            found = json.loads(body, parse_int=_integer, parse_constant=_refuse_constant, object_pairs_hook=_object)
        except RecursionError:
            raise _too_deep() from None
        except UnicodeDecodeError as error:
            raise Problem(400, "NoJson", "The body is not valid UTF-8.", next_step="Send JSON in UTF-8.") from error
        _check_depth(found)
        return found


class CheckedRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def checked(request: Request) -> Response:
            await admit(request)
            return await answer(CheckedRequest(request.scope, request.receive))

        return checked


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate names: a proxy that reads the first of them would see another job than we do."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Problem(
            400, "NameTwice", "A JSON object has two members with the same name.", next_step="Send each name once."
        )
    return found


def _integer(text: str) -> int:
    if len(text) > _INTEGER_LENGTH_MAX or not -(2**63) <= (number := int(text)) < 2**64:
        raise Problem(
            400, "NumberTooLarge", "A number has more than 64 bits.", next_step="Send it as text, or send a smaller one."
        )
    return number


def _refuse_constant(text: str) -> float:
    raise Problem(400, "NoJson", f"{text} is not valid JSON.", next_step="Send null, or omit it.")


def _check_depth(found: Any) -> None:
    """Level by level, without recursion."""
    level = [found]
    for _ in range(JSON_DEPTH_MAX + 1):
        level = [
            item
            for value in level
            if isinstance(value, dict | list)
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> Problem:
    return Problem(
        400, "JsonTooDeep", f"The JSON is nested deeper than {JSON_DEPTH_MAX} levels.", next_step="Send a flatter value."
    )
