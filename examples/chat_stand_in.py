"""Stands in for a model behind the usual chat-completions protocol, streaming included, so that examples need no key.

It plays a scripted assistant of a shop: it looks two things up, asks for a deletion, and then answers. The first request
is turned away with status 429, as happens. It prints its address, on the loopback interface, and serves until it is
stopped.
"""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Message = dict[str, Any]


def next_message(messages: list[Message]) -> Message:
    """What the assistant says next."""
    done = [str(message["content"]) for message in messages if message["role"] == "tool"]
    if not done:
        return call(("find_customer", {"name": "Ada"}), ("find_customer", {"name": "Grace"}))
    if not any("delete" in text or "refused" in text for text in done):
        return call(("delete_customer", {"number": 2}))
    outcome = "was refused" if any("refused" in text for text in done) else "is deleted"
    return {"role": "assistant", "content": f"Ada is customer 1. Grace, customer 2, {outcome}."}


def call(*tools: tuple[str, dict[str, Any]]) -> Message:
    calls = [
        {"id": f"call_{name}_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(tools)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def chunks(answer: Message) -> Iterator[Message]:
    """The answer in the pieces in which such servers stream it: the arguments of a tool come in parts, too."""
    yield {"role": "assistant", "content": ""}
    for n, one in enumerate(answer.get("tool_calls", [])):
        arguments = one["function"]["arguments"]
        yield {"tool_calls": [{"index": n, **one, "function": {**one["function"], "arguments": ""}}]}
        for part in (arguments[:5], arguments[5:]):
            yield {"tool_calls": [{"index": n, "function": {"arguments": part}}]}
    for word in (answer["content"] or "").split():
        yield {"content": f"{word} "}


class Handler(BaseHTTPRequestHandler):
    """One request: a JSON body in, one JSON object or a stream of server-sent events out."""

    protocol_version = "HTTP/1.0"
    #: How many requests are turned away.
    busy = 1
    answer = staticmethod(next_message)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if type(self).busy:
            type(self).busy -= 1
            self.send_error(429, "Too Many Requests")
            return
        answer = self.answer(asked["messages"])
        reason = "tool_calls" if answer.get("tool_calls") else "stop"
        told = {"id": "chat-1", "created": 1, "model": asked.get("model", "any")}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if asked.get("stream") else "application/json")
        self.end_headers()
        if not asked.get("stream"):
            choice = {"index": 0, "message": answer, "finish_reason": reason}
            self.wfile.write(json.dumps({**told, "object": "chat.completion", "choices": [choice], "usage": usage}).encode())
            return
        told["object"] = "chat.completion.chunk"
        for delta in chunks(answer):
            self.send_event({**told, "choices": [{"index": 0, "delta": delta}]})
        self.send_event({**told, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def send_event(self, event: Message) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base has it
        """Say nothing."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
