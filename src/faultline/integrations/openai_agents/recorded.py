"""Answers of models and tools as JSON that a job can keep, and back as the SDK's own types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import ModelBehaviorError, ModelResponse, Usage
from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from pydantic import TypeAdapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from agents.items import TResponseStreamEvent
    from openai.types.responses import Response, ResponseOutputItem

_RESPONSES: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
_OUTPUTS: TypeAdapter[Any] = TypeAdapter(ToolOutputText | ToolOutputImage | ToolOutputFileContent)
_OUTPUT_TYPES = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)


def stored_response(response: ModelResponse) -> Any:
    # What the server left out stays left out: the next request would send it as null.
    return _RESPONSES.dump_python(response, mode="json", by_alias=True, exclude_unset=True, warnings="none")


def response_in(stored: Any) -> ModelResponse:
    return _RESPONSES.validate_python(stored)


def calls_in(stored: Any) -> list[str]:
    """The ids of the tool calls in a stored response."""
    items = stored.get("output", ()) if isinstance(stored, dict) else ()
    return [str(item["call_id"]) for item in items if item.get("type") == "function_call"]


def stored_output(output: Any) -> Any:
    """What a tool has returned. What JSON cannot hold is kept as the text that the model is shown."""
    if isinstance(output, _OUTPUT_TYPES):
        return {"output": output.model_dump(mode="json", exclude_none=True)}
    if isinstance(output, list) and output and all(isinstance(one, _OUTPUT_TYPES) for one in output):
        return {"outputs": [one.model_dump(mode="json", exclude_none=True) for one in output]}
    return {"value": output if _is_json(output) else str(output)}


def output_in(stored: Any) -> Any:
    match stored:
        case {"output": one}:
            return _OUTPUTS.validate_python(one)
        case {"outputs": several}:
            return [_OUTPUTS.validate_python(one) for one in several]
    return stored["value"]


def _is_json(value: object) -> bool:
    """Whether it comes back from JSON as it was."""
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is dict:
        return all(type(key) is str and _is_json(one) for key, one in value.items())
    return value is None or type(value) in (bool, int, float, str)


async def gathered(events: AsyncIterator[TResponseStreamEvent], write: Callable[[str], object]) -> ModelResponse:
    """The response that a model streams. Its text is written as it comes."""
    items: list[ResponseOutputItem] = []
    final: Response | None = None
    async for event in events:
        match event.type:
            case "response.output_text.delta":
                write(event.delta)
            case "response.output_item.done":
                items.append(event.item)
            case "response.completed":
                final = event.response
            case "response.failed" | "response.incomplete" | "error":
                raise ModelBehaviorError(f"The model's stream ended with {event.type}: {event.model_dump_json()}")
    if final is None:
        raise ModelBehaviorError("The model's stream ended without a response")
    used = final.usage
    usage = (
        Usage(requests=1)
        if used is None
        else Usage(
            requests=1,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        )
    )
    # Some servers name the items as they come, and not at the end.
    return ModelResponse(output=final.output or items, usage=usage, response_id=final.id)
