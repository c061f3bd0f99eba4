"""What is a secret is known by its place in a URL or by its name, and is not repeated."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.secrets import (
    MAX_EXTERNAL_TEXT,
    USER,
    external_text,
    is_secret_name,
    secret_in_options,
    secret_in_url,
)

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hunter2@bucket/x",
        "https://:hunter2@host/x",
        "zip://a::https://user:hunter2@host/x",
        "simplecache::zip://a.zip::https://user:hunter2@host/x",
        "zip://a@b::https://user:hunter2@host:8080/x",
        "https://user:hun::hunter2@host/x",
        "https://user:hunter2/more@host/x",
        "abfs://me:hunter2@account.dfs.core.windows.net/x",
        "abfs://container@hunter2@account.dfs.core.windows.net/x",
        "https://account.blob.core.windows.net/c/x?sv=2024&sp=rl&sig=hunter2",
        "zip://a::https://host/x?sig=hunter2",
        "https://host/x?sig=hunter2::simplecache",
        "https://host/x?a=1;token=hunter2",
        "https://bucket.s3.amazonaws.com/x?X-Amz-Signature=hunter2",
        "https://host/x?X-Amz-Credential=hunter2",
        "https://host/x#access_token=hunter2",
        "https://host/x?AccountKey=hunter2",
        "https://host/x?%70assword=hunter2",
        "https://host/x?pass=hunter2",
    ],
)
def test_a_secret_is_found_wherever_it_stands_and_is_not_repeated(url: str) -> None:
    what = secret_in_url(url)
    assert what not in (None, USER)
    assert SECRET not in str(what)


@pytest.mark.parametrize("url", ["sftp://me@host/x", "zip://a::ssh://me@host/x"])
def test_a_user_without_a_password_is_told_as_that(url: str) -> None:
    assert secret_in_url(url) == USER


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/job",
        "s3://bucket/a@b:c/d",
        "abfs://container@account.dfs.core.windows.net/x",
        "abfss://my-container@account.dfs.core.windows.net/x",
        "wasbs://c$root@account.blob.core.windows.net/x",
        "zip://a::abfs://container@account.dfs.core.windows.net/x",
        "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/name/x",
        "hdfs://name:8020/x",
        "https://[::1]:8080/x",
        "https://host/x?region=eu&versionId=1",
        "memory://x",
        "simplecache::s3://bucket/x",
        "/data/me@host/x",
    ],
)
def test_what_is_no_secret_is_none(url: str) -> None:
    assert secret_in_url(url) is None


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"key": "A", "secret": SECRET}, "key"),
        ({"anon": False, "secret": SECRET}, "secret"),
        ({"client_kwargs": {"aws_secret_access_key": SECRET}}, "aws_secret_access_key"),
        ({"headers": {"Authorization": f"Bearer {SECRET}"}}, "Authorization"),
        ({"account_key": SECRET}, "account_key"),
        ({"connection_string": SECRET}, "connection_string"),
        ({"sas_token": SECRET}, "sas_token"),
        ({"token": {"private_key": SECRET}}, "token"),
        ({"s3": {"password": SECRET}}, "password"),
        ({"endpoint_url": f"https://me:{SECRET}@host"}, "endpoint_url"),
        ({"headers": [["Accept", "*"], ["Authorization", f"Bearer {SECRET}"]]}, "Authorization"),
        ({"storages": [{"anon": True}, {"password": SECRET}]}, "password"),
        ({"mirrors": [f"https://me:{SECRET}@host", "https://host"]}, "mirrors"),
        ({"pass": SECRET}, "pass"),
    ],
)
def test_options_that_are_secrets_are_found_by_name(options: dict[str, Any], name: str) -> None:
    assert secret_in_options(options) == name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"anon": True, "endpoint_url": "http://minio:9000", "client_kwargs": {"region_name": "eu"}},
        {"token": "anon"},
        {"hosts": ["a", "b"], "ranges": [[1, 2], ["a", 3]]},
        {"token": None, "use_ssl": False, "profile": "me", "account_name": "a", "sse_kms_key_id": "x"},
        {"username": "me", "host": "h", "key_filename": "/home/me/.ssh/id"},
    ],
)
def test_options_without_a_secret_are_let_through(options: dict[str, Any]) -> None:
    assert secret_in_options(options) is None


def test_names_are_known_however_they_are_written() -> None:
    assert all(map(is_secret_name, ["SIG", "X-Goog-Signature", "awsAccessKeyId", "api_key", "Password", "PASSWD"]))
    assert not any(map(is_secret_name, ["signed", "keys", "design", "monkey", "region", "expires", "se", "sp"]))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ModuleNotFoundError: No module named 'numpy'", None),
        ("ssh: connect to host b port 22: Connection refused", None),
        ("root@b: Permission denied (publickey,password).", None),
        ("TokenError: the token has run out", None),
        ("open s3://bucket/key failed", None),
        ("two\nlines\x1b[31m\u202e and\ta tab \ud800", "two lines [31m and a tab"),
        ("GET https://me:pw@host/x?y=1 denied", "GET https://*** denied"),
        ("https://host/x?X-Amz-Signature=abc", "https://***"),
        ("login(password='a b', user=me)", "login(password=***, user=me)"),
        ('{"api_key": "abc", "region": "eu"}', '{"api_key": ***, "region": "eu"}'),
        ("Authorization: Bearer abc", "Authorization: ***"),
        ("x" * 1000, "x" * (MAX_EXTERNAL_TEXT - 1) + "…"),
    ],
)
def test_foreign_words_are_one_line_without_secrets(said: str, words: str | None) -> None:
    assert external_text(said) == (said if words is None else words)
    assert external_text(external_text(said)) == external_text(said)
