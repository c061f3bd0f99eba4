"""What becomes of refusals, and what a caller may do then."""

from __future__ import annotations

import json

import pytest

from hvd_elastic_ext.io.kube.errors import MAX_LINE, ApiError, Reason
from hvd_elastic_ext.launcher.agents.transports.pod_exec import REMEDIES, ROLE


def status(**fields: object) -> bytes:
    return json.dumps({"kind": "Status", "status": "Failure", **fields}).encode()


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (403, status(reason="Forbidden", message="no"), f"the API server says 403 Forbidden; {ROLE}: no"),
        (404, status(reason="NotFound", message='pods "a" not found'), "with --rsh pod hosts have names of pods"),
        (401, status(reason="Unauthorized", message="Unauthorized"), "its token is missing or has expired"),
        (400, status(reason="BadRequest", message="x"), "the API server says 400 BadRequest: x"),
        (502, b"<html>\nbad\n gateway", "the API server says 502: <html> bad gateway"),
        (500, b"", "the API server says 500"),
        (500, b'["odd"]', 'the API server says 500: ["odd"]'),
        (503, b"\xff" * 5000, "the API server says 503: "),
    ],
)
def test_a_refusal_is_told_in_one_line_with_what_helps(code: int, body: bytes, said: str) -> None:
    line = str(ApiError.of_answer(code, body, remedies=REMEDIES))
    assert said in line
    assert "\n" not in line
    assert len(line) < 900


TOO_LARGE = {"code": 504, "reason": "Timeout", "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ({"code": 410, "reason": "Expired"}, Reason.EXPIRED),
        ({"code": 410, "reason": "Gone"}, Reason.EXPIRED),
        ({"reason": "Expired"}, Reason.EXPIRED),
        ({"code": 410}, Reason.EXPIRED),
        (TOO_LARGE, Reason.AHEAD),
        ({"code": 504, "reason": "Timeout", "message": "Too large resource version: 9, current: 8"}, Reason.AHEAD),
        ({"code": 504, "reason": "Timeout"}, Reason.SERVER_ERROR),
        ({"code": 500, "reason": "InternalError"}, Reason.SERVER_ERROR),
        ({"reason": "InternalError"}, Reason.SERVER_ERROR),
        ({"code": 429, "reason": "TooManyRequests"}, Reason.BUSY),
        ({"code": 503}, Reason.BUSY),
        ({"code": 401}, Reason.UNAUTHORIZED),
        ({"code": 403, "reason": "Forbidden"}, Reason.FORBIDDEN),
        ({"code": 404}, Reason.NOT_FOUND),
        ({"code": 409, "reason": "AlreadyExists"}, Reason.CONFLICT),
        ({"reason": "AlreadyExists"}, Reason.CONFLICT),
        ({"code": 400, "reason": "BadRequest"}, Reason.REFUSED),
        ({}, Reason.REFUSED),
        ({"code": "410", "details": "x", "message": None}, Reason.REFUSED),
    ],
)
def test_rule_04_a_status_is_understood_though_half_of_it_is_missing(status: dict[str, object], end: Reason) -> None:
    assert ApiError.of_status(status).reason is end


def test_a_status_may_say_when_to_come_back() -> None:
    assert ApiError.of_status({"details": {"retryAfterSeconds": 4}}).retry_after == 4
    assert ApiError.of_status({"details": {"retryAfterSeconds": 4}}, retry_after=9.0).retry_after == 9.0
    assert ApiError.of_status({"details": {"retryAfterSeconds": "x"}}).retry_after is None


def test_a_failure_is_one_line() -> None:
    assert "\n" not in str(ApiError(Reason.CUT, "one\ntwo\r\n three"))
    assert str(ApiError.of_status({"code": 403, "reason": "Forbidden", "message": "no\npods"})).count("\n") == 0
    assert len(str(ApiError(Reason.CUT, "x" * 10_000))) <= MAX_LINE


def test_an_answer_says_when_to_come_back_and_what_lacks() -> None:
    busy = ApiError.of_answer(429, b"", retry_after="7")
    assert (busy.retry_after, busy.transient, busy.answered) == (7.0, True, True)
    assert ApiError.of_answer(429, b"", retry_after="soon").retry_after is None
    lacks = ApiError.of_answer(403, status(message='User "a" cannot get resource "pods" in API group ""'))
    assert (lacks.lacks_right, lacks.transient) == (True, False)
    assert not ApiError.of_answer(403, status(message="exceeded quota")).lacks_right


@pytest.mark.parametrize(
    ("reason", "transient"),
    [(Reason.CUT, True), (Reason.NO_CREDENTIALS, True), (Reason.NOT_FOUND, False), (Reason.UNAUTHORIZED, False)],
)
def test_what_passes_without_help_is_told_apart(reason: Reason, transient: bool) -> None:
    error = ApiError(reason)
    assert (error.transient, error.answered, str(error)) == (transient, False, reason.value)
