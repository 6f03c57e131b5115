"""A server on the loopback interface that speaks the chat-completions protocol and says what a test wants."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from examples.chat_stand_in import Handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Message = dict[str, Any]


def asks(*tools: tuple[str, dict[str, Any]], word: str = "call") -> Message:
    """The model asks for these tools."""
    calls = [
        {"id": f"{word}_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(tools)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def returned(messages: list[Message]) -> list[str]:
    """What tools have answered so far."""
    return [str(message["content"]) for message in messages if message["role"] == "tool"]


class Chat:
    """What was asked of the model."""

    def __init__(self, url: str) -> None:
        self.url = url
        #: The messages of each request that was answered.
        self.asked: list[list[Message]] = []


@contextlib.contextmanager
def chat(script: Callable[[list[Message]], Message], turned_away: int = 0) -> Iterator[Chat]:
    """A model that answers by a script, after it has turned so many requests away."""

    class Scripted(Handler):
        busy = turned_away

        @staticmethod
        def answer(messages: list[Message]) -> Message:
            found.asked.append(messages)
            return script(messages)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    found = Chat(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
