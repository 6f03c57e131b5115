"""The guards of who did it, and why: that it is recorded, by which login, once, and that it hides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline_proof.mutants.texts import Guards

_CHANGED = "(was.paused_reason, was.paused_by) is distinct from (signed ->> 'reason', signer)"

GUARDS: Guards = {
    "signature": {
        "bounds a name": ("length(signature.by) not between 1 and 200", "length(signature.by) < 1"),
        "wants a name where one is given": ("not between 1 and 200", "> 200"),
        "takes no name that hides or turns text": ("faultline.is_unreadable(signature.by)", "false"),
        "bounds a reason": ("length(signature.reason) > 1000", "false"),
        "takes no control characters for a reason": "\\u0001-\\u0008\\u000b\\u000c\\u000e-\\u001f",
        "takes no turned reason": "\\u202a-\\u202e\\u2066-\\u2069",
        "knows the login, whatever the name": ("'login', session_user::text", "'login', signature.by"),
        "asks for the login, not for the role": ("'login', session_user", "'login', current_user"),
        "takes the login for who gives no name": ("coalesce(signature.by, session_user::text)", "signature.by"),
    },
    "cancel": {
        "records who did it": ("signature(cancel.by, ", "signature(null, "),
        "records why": ("cancel.reason);", "null);"),
        "takes no reason that makes the journal lie": (
            "faultline.signature(cancel.by, cancel.reason)",
            "faultline.signature(cancel.by) || jsonb_build_object('reason', cancel.reason)",
        ),
    },
    "cancel_jobs": {
        "records who did it": ("by => cancel_jobs.by", "by => null"),
        "records why": ("l.id, cancel_jobs.reason", "l.id, null"),
    },
    "retry": {
        "records who did it": ("signature(retry.by, ", "signature(null, "),
        "records why": ("retry.reason);", "null);"),
    },
    "retry_failed": {
        "records who did it": ("signature(retry_failed.by, ", "signature(null, "),
        "records why": ("retry_failed.reason);", "null);"),
    },
    "requeue_ended_jobs": {
        "records who did it": " || requeue_ended_jobs.signed",
    },
    "pause": {
        "records who did it": ("signature(pause.by, ", "signature(null, "),
        "records why": ("pause.reason);", "null);"),
        "takes no reason that makes the journal lie": (
            "faultline.signature(pause.by, pause.reason)",
            "faultline.signature(pause.by) || jsonb_build_object('reason', pause.reason)",
        ),
        "writes the login last": ("' (login ' || nullif(signed ->> 'login', signed ->> 'by') || ')'", "''"),
        "is recorded in the journal": (_CHANGED, "false"),
        "is recorded once": (_CHANGED, "true"),
        "records another reason": (_CHANGED, "was.paused_by is distinct from signer"),
        "records another person": (
            _CHANGED,
            "was.paused_reason is distinct from signed ->> 'reason' or was.paused_at is null",
        ),
    },
    "resume": {
        "records who did it": ("signature(resume.by, ", "signature(null, "),
        "records why": ("resume.reason);", "null);"),
        "tells what was not paused from what was": "  if not found then\n    return false;\n  end if;\n",
    },
    "change_setting": {
        "records who did it": ("signature(change_setting.by, ", "signature(null, "),
        "records why": ("change_setting.reason);", "null);"),
        "is recorded once": ("if was = change_setting.value then", "if false then"),
        "knows which columns are settings": ("where known.name = change_setting.name", "limit 1"),
        "keeps a setting above its least value": ("not between least_value and", "not between 0 - 1 and"),
        "keeps a setting below its greatest value": ("and greatest_value then", "and 1e18 then"),
    },
    "add_api_key": {
        "records who did it": ("signature(add_api_key.by, ", "signature(null, "),
        "records why": ("add_api_key.reason);", "null);"),
    },
    "revoke_api_key": {
        "records who did it": ("signature(revoke_api_key.by, ", "signature(null, "),
        "records why": ("revoke_api_key.reason);", "null);"),
    },
}
