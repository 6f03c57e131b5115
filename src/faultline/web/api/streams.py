"""What a running job writes to a stream, as server-sent events.

event: chunk   items that were written together; `id:` is where to continue
event: reset   a later attempt writes again what came behind the first `kept` items: forget those
event: end     the last event, with the state of the job, or why: old or closing (reconnect to continue), signed_out
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import StringConstraints
from pydantic.json_schema import SkipJsonSchema

from faultline.core import events
from faultline.core.errors import FaultlineError, JobNotFound
from faultline.store import jsontext
from faultline.store.verbs.streams import Chunks, Position, chunks, no_job
from faultline.web.api.shapes import StreamName
from faultline.web.auth.access import needs, still_let_in
from faultline.web.auth.caller import Caller
from faultline.web.server.problems import Problem
from faultline.web.server.service import service_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

router = APIRouter(tags=["flows"])
#: Where a reader was: token, position, and how many items there were. Letters and digits pass through every proxy and tool.
Where = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,18}p[0-9]{1,9}p[0-9]{1,9}$")]
_PART = "p"
_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["chunk", "reset", "end"]},
        "id": {"type": "string", "description": "Where to continue: send it as Last-Event-ID."},
        "data": {"type": "string", "description": "JSON."},
    },
}
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 1.0
_SEND_SECONDS = 20.0


@router.get(
    "/jobs/{job_id:uuid}/stream",
    summary="What a job writes to a stream, as server-sent events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": _EVENT}}}},
)
async def follow(
    request: Request,
    job_id: UUID,
    caller: Annotated[Caller, Depends(needs("read"))],
    name: Annotated[StreamName, Query(description="The name of the stream.")],
    last_event_id: Annotated[Where | SkipJsonSchema[None], Header()] = None,
) -> Response:
    """What a job writes to a stream, until it ends. `reset`: a later attempt writes some of it again."""
    behind = Position() if last_event_id is None else Position(*map(int, last_event_id.split(_PART)))
    first = await service_of(request).read_for(caller).run(chunks(job_id, name, behind))
    if not caller.may_touch(first.queue):
        # In the same words as for one that does not exist.
        raise JobNotFound(no_job(job_id))
    return _Followed(request, caller, job_id, name, behind, first)


class _Followed(Response):
    media_type = "text/event-stream"

    def __init__(self, request: Request, caller: Caller, job_id: UUID, name: str, behind: Position, first: Chunks) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["Cache-Control"] = "no-store"
        self.headers["X-Accel-Buffering"] = "no"
        self._request = request
        self._service = service_of(request)
        self._caller, self._job_id, self._name = caller, job_id, name
        self._behind, self._first = behind, first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._service.followers.joined(self._caller):
                await self._answer(receive, send)
        except Problem as problem:
            await problem.response()(scope, receive, send)

    async def _answer(self, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            reason = await self._follow(send, gone)
            if reason is not None:
                await _send(send, _event("end", {"reason": reason}), last=True)
        except TimeoutError:
            events.emit("stream_given_up", caller=self._caller.name)
        finally:
            gone.cancel()

    async def _follow(self, send: Send, gone: asyncio.Task[None]) -> str | None:
        """Sends what comes, and returns why nothing more does. None: there is nobody to tell."""
        limits, now = self._service.limits, self._service.host.monotonic
        end_at, check_at = now() + limits.stream_seconds, now() + limits.heartbeat_seconds
        seen, pause = self._first, _PAUSE_SECONDS
        while not gone.done():
            for text in self._events(seen):
                await _send(send, text)
            if seen.has_ended:
                return str(seen.state)
            if now() >= end_at or self._service.followers.is_closing:
                return "closing" if self._service.followers.is_closing else "old"
            if now() >= check_at:
                check_at = now() + limits.heartbeat_seconds
                if not await still_let_in(self._request, self._caller):
                    return "signed_out"
                await _send(send, b": alive\n\n")
            if not seen.more:
                pause = _PAUSE_SECONDS if seen.chunks else min(2 * pause, _PAUSE_SECONDS_MAX)
                await asyncio.wait({gone}, timeout=pause)
            try:
                # A connection is held for each look only, and by a few readers of one caller at once.
                seen = await self._service.read_for(self._caller).run(chunks(self._job_id, self._name, self._behind))
            except FaultlineError as error:
                if not isinstance(error, Problem):
                    return "old"
                # Too many readers look at the same time: it has its turn later. To reconnect would make them more.
                seen = seen._replace(chunks=[], more=True)
        return None

    def _events(self, seen: Chunks) -> list[bytes]:
        found = []
        for chunk in seen.chunks:
            if chunk.position < self._behind.items:
                found.append(_event("reset", {"kept": chunk.position}))
            self._behind = Position(chunk.fencing_token, chunk.position, chunk.position + len(chunk.items))
            found.append(_event("chunk", chunk.items, _PART.join(map(str, self._behind))))
        return found


def _event(kind: str, data: object, where: str | None = None) -> bytes:
    head = "" if where is None else f"id: {where}\n"
    return f"{head}event: {kind}\ndata: {jsontext.encode(data, 'event')}\n\n".encode()


async def _send(send: Send, text: bytes, *, last: bool = False) -> None:
    async with asyncio.timeout(_SEND_SECONDS):
        await send({"type": "http.response.body", "body": text, "more_body": not last})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
