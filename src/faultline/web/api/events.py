"""Live changes, as server-sent events.

event: journal   an entry of the journal; `id:` is where to continue, and `data.id` identifies one that is sent twice
event: queues    every queue, whenever one has changed
event: progress  what a running job says of how far it is, at most once a second; the last one when it has ended or waits
event: reset     too much was missed: reload what you show
event: end       the last event, with the reason: too_slow, closing, signed_out, old (reconnect to continue)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import StringConstraints
from pydantic.json_schema import SkipJsonSchema

from faultline.core import events
from faultline.store import jsontext
from faultline.web.auth.access import needs, still_let_in
from faultline.web.auth.caller import Caller
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from faultline.web.live.changes import Changes, Client

router = APIRouter(tags=["watch"])

EventNumber = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,18}$")]
_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["journal", "queues", "progress", "reset", "end"]},
        "id": {"type": "string", "pattern": "^[0-9]+$", "description": "Where to continue: send it as Last-Event-ID."},
        "data": {"type": "string", "description": "JSON."},
    },
}
#: A connection that accepts nothing for so long is closed.
_SEND_SECONDS = 20.0


@router.get(
    "/events",
    summary="Live changes, as server-sent events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": _EVENT}}}},
)
async def watch(
    request: Request,
    caller: Annotated[Caller, Depends(needs("read"))],
    # No null in the schema: the header is missing or a number.
    last_event_id: Annotated[EventNumber | SkipJsonSchema[None], Header()] = None,
) -> Response:
    source = service_of(request).changes
    client = await source.join(caller)
    try:
        missed = [] if last_event_id is None else await source.missed(caller, int(last_event_id))
    except BaseException:
        source.leave(client)
        raise
    return EventStream(request, source, client, missed)


class EventStream(Response):
    media_type = "text/event-stream"

    def __init__(self, request: Request, source: Changes, client: Client, missed: list[bytes]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["Cache-Control"] = "no-store"
        self.headers["X-Accel-Buffering"] = "no"
        self._request = request
        self._source = source
        self._client = client
        self._missed = missed
        self._service = service_of(request)
        now = self._service.host.monotonic()
        self._check_at = now + self._service.limits.heartbeat_seconds
        self._end_at = now + self._service.limits.stream_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for text in (b"retry: 2000\n\n", *self._missed):
                await _send(send, text)
            while not gone.done() and (waiting := await self._next(gone)) is not None:
                await _send(send, waiting)
            if not gone.done():
                reason = jsontext.encode({"reason": self._client.ended}, "event")
                await _send(send, f"event: end\ndata: {reason}\n\n".encode(), last=True)
        except TimeoutError:
            events.emit("stream_given_up", caller=self._client.caller.name)
        finally:
            self._source.leave(self._client)
            gone.cancel()

    async def _next(self, gone: asyncio.Task[None]) -> bytes | None:
        """The next event, or a keep-alive. None: the stream has ended."""
        now = self._service.host.monotonic()
        if now >= self._check_at:
            self._check_at = now + self._service.limits.heartbeat_seconds
            if not await still_let_in(self._request, self._client.caller):
                self._client.end("signed_out")
        if now >= self._end_at:
            self._client.end("old")
        waiting = asyncio.create_task(self._client.waiting.get())
        patience = min(self._service.limits.heartbeat_seconds, max(0.0, self._end_at - now))
        await asyncio.wait({waiting, gone}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        waiting.cancel()
        return b": alive\n\n"


async def _send(send: Send, text: bytes, *, last: bool = False) -> None:
    async with asyncio.timeout(_SEND_SECONDS):
        await send({"type": "http.response.body", "body": text, "more_body": not last})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
