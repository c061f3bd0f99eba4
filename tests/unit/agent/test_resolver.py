"""Host names and addresses."""

from __future__ import annotations

from hvd_elastic_ext.agent.resolver import family, resolve


def test_names_are_told_from_addresses_and_what_does_not_resolve_says_so() -> None:
    assert family("127.0.0.1") is not None
    assert family("::1") is not None
    assert family("localhost") is None
    assert "127.0.0.1" in resolve("localhost").addresses
    addresses, problem = resolve("no-such-host.invalid")
    assert addresses == ()
    assert problem is not None
    assert problem.startswith("no-such-host.invalid does not resolve: ")
