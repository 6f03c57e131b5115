"""The guards of who did it, and why: that it is recorded, by which login, once, and that it hides nothing."""

from __future__ import annotations

from faultline_proof.mutants.texts import Cut

_SIGNATURE = [
    Cut("signature", "bounds a name", "length(signature.by) not between 1 and 200", "length(signature.by) < 1"),
    Cut("signature", "wants a name where one is given", "not between 1 and 200", "> 200"),
    Cut("signature", "takes no control characters for a name", "\\u0001-\\u001f"),
    Cut("signature", "takes no turned name", "\\u2028-\\u202e"),
    Cut("signature", "bounds a reason", "length(signature.reason) > 1000", "false"),
    Cut("signature", "takes no control characters for a reason", "\\u0001-\\u0008\\u000b\\u000c\\u000e-\\u001f"),
    Cut("signature", "takes no turned reason", "\\u202a-\\u202e\\u2066-\\u2069"),
    Cut("signature", "knows the login, whatever the name", "'login', session_user::text", "'login', signature.by"),
    Cut("signature", "asks for the login, not for the role", "'login', session_user", "'login', current_user"),
    Cut("signature", "takes the login for who gives no name", "coalesce(signature.by, session_user::text)", "signature.by"),
]

_CHANGED = "(was.paused_because, was.paused_by) is distinct from (signed ->> 'reason', told)"

_RECORDED = [
    Cut("cancel", "tells who it was", "signature(cancel.by, ", "signature(null, "),
    Cut("cancel", "tells why", "cancel.reason);", "null);"),
    Cut(
        "cancel",
        "takes no reason that makes the journal lie",
        "faultline.signature(cancel.by, cancel.reason)",
        "faultline.signature(cancel.by) || jsonb_build_object('reason', cancel.reason)",
    ),
    Cut("retry", "tells who it was", "signature(retry.by, ", "signature(null, "),
    Cut("retry", "tells why", "retry.reason);", "null);"),
    Cut("retry_failed", "tells who it was", "signature(retry_failed.by, ", "signature(null, "),
    Cut("retry_failed", "tells why", "retry_failed.reason);", "null);"),
    Cut("start_over", "tells who did it", " || start_over.signed"),
    Cut("pause", "tells who it was", "signature(pause.by, ", "signature(null, "),
    Cut("pause", "tells why", "pause.reason);", "null);"),
    Cut(
        "pause",
        "takes no reason that makes the journal lie",
        "faultline.signature(pause.by, pause.reason)",
        "faultline.signature(pause.by) || jsonb_build_object('reason', pause.reason)",
    ),
    Cut("pause", "writes the login last", "' (login ' || nullif(signed ->> 'login', signed ->> 'by') || ')'", "''"),
    Cut(
        "pause",
        "is told by the journal",
        _CHANGED,
        "false",
    ),
    Cut(
        "pause",
        "is told once",
        _CHANGED,
        "true",
    ),
    Cut(
        "pause",
        "tells of another reason",
        _CHANGED,
        "was.paused_by is distinct from told",
    ),
    Cut(
        "pause",
        "tells of another person",
        _CHANGED,
        "was.paused_because is distinct from signed ->> 'reason' or was.paused_at is null",
    ),
    Cut("resume", "tells who it was", "signature(resume.by, ", "signature(null, "),
    Cut("resume", "tells why", "resume.reason);", "null);"),
    Cut("resume", "tells what was not paused from what was", "  if not found then\n    return false;\n  end if;\n"),
    Cut("change_setting", "tells who it was", "signature(change_setting.by, ", "signature(null, "),
    Cut("change_setting", "tells why", "change_setting.reason);", "null);"),
    Cut("change_setting", "is told once", "if was = change_setting.value then", "if false then"),
    Cut("change_setting", "knows which columns are settings", "where known.name = change_setting.name", "limit 1"),
    Cut("change_setting", "keeps a setting above its least value", "not between least_value and", "not between 0 - 1 and"),
    Cut("change_setting", "keeps a setting below its greatest value", "and greatest_value then", "and 1e18 then"),
    Cut("add_api_key", "tells who it was", "signature(add_api_key.by, ", "signature(null, "),
    Cut("add_api_key", "tells why", "add_api_key.reason);", "null);"),
    Cut("revoke_api_key", "tells who it was", "signature(revoke_api_key.by, ", "signature(null, "),
    Cut("revoke_api_key", "tells why", "revoke_api_key.reason);", "null);"),
]

CUTS = [*_SIGNATURE, *_RECORDED]
