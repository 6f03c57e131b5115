"""The guards of names: that people can read and type them, and that nothing without a name is passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards


def _checked(verb: str, what: str, length_max: int, rest: str = "") -> tuple[str, str]:
    return f"perform faultline.check_name('the name of {what}', {verb}, {length_max}{rest});", "null;"


_KNOWN, _ANY_ENDS = ", known => true", ", trimmed => false"

GUARDS: Guards = {
    "is_unreadable": {
        "takes white space at an end": ("then name ~ '^[", "then name ~ '^x["),
        "takes no turned name": (
            "\\u2028-\\u202e\\u2066-\\u2069]'\n",
            "\\u2028\\u2029]'\n",
            ("\\u2028-\\u202e\\u2066-\\u2069]|", "\\u2028\\u2029]|"),
        ),
        "takes no controls": ("else name ~ '[\\u0001-\\u001f\\u007f-\\u009f", "else name ~ '["),
    },
    "check_name": {
        "wants a name": ("coalesce(length(check_name.name), 0)", "length(check_name.name)"),
        "wants a short name": ("not between 1 and check_name.length_max", "= 0"),
        "wants a name that can be read": ("not check_name.known and ", "false and "),
        "lets go of what is known": ("not check_name.known and ", ""),
    },
    "pause": {"wants a name": _checked("pause.queue", "a queue", 100)},
    "resume": {"wants a name": _checked("resume.queue", "a queue", 100, _KNOWN)},
    "publish": {"wants a topic": _checked("publish.topic", "a topic", 200)},
    "subscribe": {"wants a topic": _checked("subscribe.topic", "a topic", 200)},
    "unsubscribe": {
        "wants a topic": _checked("unsubscribe.topic", "a topic", 200, _KNOWN),
        "wants a task": _checked("unsubscribe.task", "a task", 200, _KNOWN),
    },
    "remove_schedule": {"wants a name": _checked("remove_schedule.name", "a schedule", 200, _KNOWN)},
    "check_schedule": {"wants a name": _checked("check_schedule.name", "a schedule", 200)},
    "set_budget": {"wants a name": _checked("set_budget.budget", "a budget", 100, _KNOWN)},
    "checked_budget": {"wants a name": _checked("budget", "a budget", 100, _ANY_ENDS)},
    "limit_queue": {"wants a name": _checked("limit_queue.queue", "a queue", 100)},
    "limited_one": {"wants a group that can be read": " or faultline.is_unreadable(group_key)"},
    "stream": {"wants a name": _checked("stream.name", "a stream", 200, _ANY_ENDS)},
    "step": {"wants a name that can be read": _checked("step.name", "a step", 200, _ANY_ENDS)},
    "receive": {"wants a name that can be read": _checked("receive.name", "a signal", 200, _ANY_ENDS)},
    "watch": {"wants a name": _checked("watch.name", "a call", 200, _ANY_ENDS)},
    "suspend": {},
    "add_api_key": {"wants a name that can be read": _checked("add_api_key.name", "an API key", 100)},
    "signal": {
        "wants a name that can be read": ("faultline.is_unreadable(signal.name) or ", ""),
        "wants a key that can be read": " or faultline.is_unreadable(signal.key)",
    },
    "enqueue": {
        "inserts no queue with a name that cannot be read": (
            "not faultline.is_unreadable(enqueue.queue, trimmed => true)",
            "true",
        ),
    },
    "parse_new_jobs": {
        "refuses an id that does not begin with its time": "\n        or not faultline.is_time_ordered(j.id)",
        "refuses a queue with a name that cannot be read": "or faultline.is_unreadable(j.queue, trimmed => true)",
        "refuses a group that cannot be read": " or faultline.is_unreadable(j.group_key)",
    },
    "is_time_ordered": {"knows the version": (">> 4 = 7", ">> 4 > 0")},
    "read_jobs": {
        "wants text": (" or k.name = any (texts) and json_typeof(k.value) not in ('string', 'null')", ""),
    },
    "keep_waits": {
        "wants a name": ("  where coalesce(length(w.name), 0) not between 1 and 200 or ", "  where "),
        "wants a name that can be read": (" or faultline.is_unreadable(w.name);", ";"),
    },
    "check_call": {
        "wants a name that can be read": "    and not faultline.is_unreadable(name)\n",
    },
}
