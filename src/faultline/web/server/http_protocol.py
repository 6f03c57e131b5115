"""HTTP as bytes. A request that the parser refuses gets problem+json and the usual headers."""

from __future__ import annotations

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from faultline.web.server.problems import Problem
from faultline.web.server.security_middleware import HEADERS

#: How much more is read of a refused request, and for how long. Closing a connection with unread data resets it, and the
#: response may be lost.
_READ_BYTES, _READ_SECONDS = 1024 * 1024, 2.0


class Wire(H11Protocol):
    _refused = False
    _read = 0

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)
            return
        self._read += len(data)
        if self._read > _READ_BYTES:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the parser logs it
        self._refused = True
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # in the middle of a response
            return
        answer = Problem(
            400, "BadHttp", "Invalid HTTP request.", next_step="Send HTTP/1.1 as RFC 9112 describes it."
        ).response()
        headers = [*answer.raw_headers, *HEADERS, (b"connection", b"close")]
        events: list[Any] = [
            h11.Response(status_code=400, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ]
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_READ_SECONDS, self.transport.close)
