"""Only the browser of the job's user reads the page's data."""

from __future__ import annotations

import base64
import hashlib

import pytest

from hvd_elastic_ext.dashboard import guard


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic secret", "secret", "Bearer secre", "Bearer sécret"]
)
def test_without_the_token_nothing_is_read(header: str | None) -> None:
    assert not guard.has_token("secret", header)
    assert guard.has_token("secret", "Bearer secret")


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {guard.new_token() for _ in range(50)}
    assert len(tokens) == 50
    assert all(len(token) >= 32 for token in tokens)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:80", "[::1]:9", "localhost", "LOCALHOST:1", "10.0.0.7", "node7:8265", "node7."]
)
def test_this_machine_may_be_called_by_address_or_by_its_name(host: str) -> None:
    assert guard.is_named(host, {"Node7"})


@pytest.mark.parametrize(
    "host",
    [
        *(None, "", "evil.example", "evil.example:8265", "127.0.0.1.evil.example", "localhost.evil"),
        *("[::1]/x?", "[::1]?", "[::1]#", "[::1]x", "[::1", "localhost/x", "node7:1/x", "node7:80:80", "[node7]"),
    ],
)
def test_a_name_that_somebody_points_here_is_refused(host: str | None) -> None:
    assert not guard.is_named(host, {"node7"})


def test_another_origin_changes_nothing() -> None:
    assert guard.is_same_origin("http://127.0.0.1:1", "127.0.0.1:1")
    assert guard.is_same_origin(None, "127.0.0.1:1")
    assert not guard.is_same_origin("http://evil.example", "127.0.0.1:1")
    assert not guard.is_same_origin("null", "127.0.0.1:1")


def test_a_page_in_one_file_may_run_its_own_scripts_and_connect_nowhere() -> None:
    policy = guard.policy_of_file(scripts=["one()", "two()"])
    one, two = (base64.b64encode(hashlib.sha256(each).digest()).decode() for each in (b"one()", b"two()"))
    assert f"script-src 'sha256-{one}' 'sha256-{two}';" in policy
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy


def test_no_script_is_made_of_text_and_markup_brings_no_style() -> None:
    for policy in (guard.POLICY, guard.policy_of_file(scripts=["one()"])):
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert "unsafe" not in rules.pop("script-src")
        assert rules.pop("style-src-attr") == "'none'"
        assert "'unsafe-inline'" in rules.pop("style-src")
        assert "unsafe" not in " ".join(rules.values())
