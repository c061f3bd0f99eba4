"""Paths of an API server."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.io.kube.errors import ApiError
from hvd_elastic_ext.io.kube.paths import path_of


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (path_of("v1", "pods"), "/api/v1/pods"),
        (path_of("v1", "nodes", name="n-1"), "/api/v1/nodes/n-1"),
        (path_of("v1", "pods", "jobs", "w-0", "log"), "/api/v1/namespaces/jobs/pods/w-0/log"),
        (path_of("apps/v1", "statefulsets", "a", "w", "scale"), "/apis/apps/v1/namespaces/a/statefulsets/w/scale"),
        (path_of("kubeflow.org/v2beta1", "mpijobs", "a"), "/apis/kubeflow.org/v2beta1/namespaces/a/mpijobs"),
    ],
)
def test_a_path_names_an_object_or_all_of_its_kind(path: str, expected: str) -> None:
    assert path == expected


@pytest.mark.parametrize(
    "parts",
    [
        ("v1", "pods", ".."),
        ("v1", "pods", "a/b"),
        ("v1", "pods", "A"),
        ("v1", "pods", "a", ".."),
        ("v1", "pods", "a", "."),
        ("v1", "pods", "a", "", "log"),
        ("v1", "../secrets", "a"),
        ("v1", "pods?watch=1", "a"),
        ("../v1", "pods", "a"),
        ("a/b/v1", "pods", "a"),
        ("v1", "pods", "a", "b", "log?follow=true"),
    ],
)
def test_what_is_no_name_is_refused_in_one_line(parts: tuple[str, ...]) -> None:
    with pytest.raises(ApiError) as refused:
        path_of(*parts)
    assert "\n" not in str(refused.value)


@given(st.text(min_size=1, max_size=40) | st.from_regex(r"[a-z0-9./?%#-]{1,40}", fullmatch=True))
def test_no_name_asks_for_anything_but_its_object(name: str) -> None:
    try:
        path = path_of("v1", "pods", "a", name)
    except ApiError:
        assert name in (".", "..")
        return
    url = urlsplit(f"https://server{path}")
    assert [unquote(each) for each in url.path.split("/")] == ["", "api", "v1", "namespaces", "a", "pods", name]
    assert (url.query, url.fragment) == ("", "")
