"""What a running job writes to a stream, as server-sent events.

event: chunk   items that were written together; `id:` is where to continue
event: reset   a later attempt writes again what came behind the first `kept` items: forget those
event: end     the last event, with the state of the job, or why: old (reconnect to continue)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import StringConstraints
from pydantic.json_schema import SkipJsonSchema

from faultline.core.errors import FaultlineError, JobNotFound
from faultline.store import jsontext
from faultline.store.verbs.streams import Chunks, Position, chunks
from faultline.web.access import needs
from faultline.web.caller import Caller
from faultline.web.problems import Problem
from faultline.web.service import service_of
from faultline.web.shapes import StreamName

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
        raise JobNotFound(f"no job {job_id}; it was never enqueued in this database, or it was pruned")
    return _Followed(request, caller, job_id, name, behind, first)


class _Followed(Response):
    media_type = "text/event-stream"

    def __init__(self, request: Request, caller: Caller, job_id: UUID, name: str, behind: Position, first: Chunks) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["Cache-Control"] = "no-store"
        self.headers["X-Accel-Buffering"] = "no"
        self._service = service_of(request)
        self._caller, self._job_id, self._name = caller, job_id, name
        self._behind, self._first = behind, first
        self._followers: Counter[str] = request.app.state.__dict__.setdefault("followers", Counter())
        limits = self._service.limits
        if self._followers[caller.id] >= limits.streams_caller_max or self._followers.total() >= limits.streams_max:
            raise Problem(429, "TooManyStreams", "There are too many live streams.", next_step="Close one of them.")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        gone = asyncio.create_task(_disconnected(receive))
        self._followers[self._caller.id] += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._follow(send, gone)
        except TimeoutError:
            pass  # nobody reads it
        finally:
            self._followers[self._caller.id] -= 1
            gone.cancel()

    async def _follow(self, send: Send, gone: asyncio.Task[None]) -> None:
        end_at = self._service.host.monotonic() + self._service.limits.stream_seconds
        seen, pause = self._first, _PAUSE_SECONDS
        while not gone.done():
            for text in self._events(seen):
                await _send(send, text)
            if seen.has_ended or self._service.host.monotonic() >= end_at:
                reason = str(seen.state) if seen.has_ended else "old"
                await _send(send, _event("end", {"reason": reason}), last=True)
                return
            if not seen.more:
                pause = _PAUSE_SECONDS if seen.chunks else min(2 * pause, _PAUSE_SECONDS_MAX)
                await asyncio.wait({gone}, timeout=pause)
            try:
                seen = await self._service.read_for(self._caller).run(chunks(self._job_id, self._name, self._behind))
            except FaultlineError:
                await _send(send, _event("end", {"reason": "old"}), last=True)
                return

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
