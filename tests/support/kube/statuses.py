"""The answers of the server to requests that it refuses, in the words of real servers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.support.kube.resources import Resource

CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)


class ApiError(Exception):
    """A refusal. ``body``: the Status. ``code``: the HTTP status."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(body.get("message", ""))
        self.body = body

    @property
    def code(self) -> int:
        return int(self.body["code"])


def status(
    code: int,
    reason: str,
    message: str,
    *,
    details: dict[str, Any] | None = None,
    again: str = "",
) -> dict[str, Any]:
    """Return a Status of a failure. ``again``: the value of ``metadata.continue``."""
    body: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {"continue": again} if again else {},
        "status": "Failure",
        "message": message,
    }
    if reason:
        body["reason"] = reason
    if details is not None:
        body["details"] = details
    return body | {"code": code}


def _about(resource: Resource, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    return details | {"kind": resource.plural}


def _named(resource: Resource, name: str) -> str:
    return f'{resource.qualified} "{name}"' if name else resource.qualified


def unauthorized() -> ApiError:
    return ApiError(status(401, "Unauthorized", "Unauthorized"))


def forbidden(
    user: str,
    verb: str,
    resource: Resource,
    *,
    subresource: str,
    namespace: str,
    name: str,
    missing: Sequence[str] = (),
) -> ApiError:
    """Return a 403. ``missing``: messages about roles that bindings of the user name and that do not exist."""
    what = f"{resource.plural}/{subresource}" if subresource else resource.plural
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    message = (
        f'{_named(resource, name)} is forbidden: User "{user}" cannot {verb} resource "{what}" '
        f'in API group "{resource.group}" {where}'
    )
    if missing:
        message += ": RBAC: " + (missing[0] if len(missing) == 1 else f"[{', '.join(missing)}]")
    return ApiError(status(403, "Forbidden", message, details=_about(resource, name)))


def escalation(user: str, resource: Resource, name: str, missing: Iterable[str]) -> ApiError:
    """Return the refusal to grant rights that the user does not have."""
    what = "\n".join(missing)
    message = (
        f'{_named(resource, name)} is forbidden: user "{user}" (groups=["system:authenticated"]) is attempting to '
        f"grant RBAC permissions not currently held:\n{what}"
    )
    return ApiError(status(403, "Forbidden", message, details=_about(resource, name)))


def not_found(resource: Resource, name: str) -> ApiError:
    message = f"{_named(resource, name)} not found"
    return ApiError(status(404, "NotFound", message, details=_about(resource, name)))


def no_such_path() -> ApiError:
    return ApiError(status(404, "NotFound", "the server could not find the requested resource", details={}))


def method_not_allowed() -> ApiError:
    message = "the server does not allow this method on the requested resource"
    return ApiError(status(405, "MethodNotAllowed", message, details={}))


def already_exists(resource: Resource, name: str) -> ApiError:
    message = f"{_named(resource, name)} already exists"
    return ApiError(status(409, "AlreadyExists", message, details=_about(resource, name)))


def conflict(resource: Resource, name: str, why: str = "") -> ApiError:
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    message = f"Operation cannot be fulfilled on {_named(resource, name)}: {why}"
    return ApiError(status(409, "Conflict", message, details=_about(resource, name)))


def bad_request(message: str) -> ApiError:
    return ApiError(status(400, "BadRequest", message))


def invalid(kind: str, group: str, name: str, *, field: str, why: str, reason: str = "FieldValueInvalid") -> ApiError:
    details: dict[str, Any] = {"name": name} if name else {}
    if group:
        details["group"] = group
    details |= {"kind": kind, "causes": [{"reason": reason, "message": why, "field": field}]}
    what = f"{kind}.{group}" if group else kind
    return ApiError(status(422, "Invalid", f'{what} "{name}" is invalid: {field}: {why}', details=details))


def unprocessable(message: str) -> ApiError:
    """Return the refusal of a JSON patch that cannot be applied."""
    return ApiError(
        status(422, "Invalid", f"the server rejected our request due to an error in our request: {message}")
    )


def unsupported_media(accepted: list[str]) -> ApiError:
    what = ", ".join(accepted)
    message = f"the body of the request was in an unknown format - accepted media types include: {what}"
    return ApiError(status(415, "UnsupportedMediaType", message))


def too_old(asked: int, oldest: int) -> ApiError:
    """Return the refusal of a watch from a version before the history. Real servers send it in an ERROR event, after
    HTTP 200.
    """
    return ApiError(status(410, "Expired", f"too old resource version: {asked} ({oldest})"))


def list_too_old() -> ApiError:
    return ApiError(status(410, "Expired", "The resourceVersion for the provided list is too old."))


def continue_expired(again: str) -> ApiError:
    return ApiError(status(410, "Expired", CONTINUE_EXPIRED, again=again))


def too_large(asked: int, current: int) -> ApiError:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return ApiError(status(504, "Timeout", message, details={"causes": [cause], "retryAfterSeconds": 1}))


def too_many_requests(message: str, *, retry_after: int, details: dict[str, Any] | None = None) -> ApiError:
    details = dict(details or {})
    if retry_after:
        details["retryAfterSeconds"] = retry_after
    return ApiError(status(429, "TooManyRequests", message, details=details))


def internal(message: str) -> ApiError:
    details = {"causes": [{"message": message}]}
    return ApiError(status(500, "InternalError", f"Internal error occurred: {message}", details=details))


def success(resource: Resource, name: str, uid: str) -> dict[str, Any]:
    """Return the answer to a deletion."""
    details = _about(resource, name) | {"uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
