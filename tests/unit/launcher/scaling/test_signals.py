"""Signals for ``--autoscale`` from files and from a Prometheus server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.secrets import OBSERVE_TOKEN
from hvd_elastic_ext.launcher.scaling import signals
from tests.support.serving import Serving, serving


def values(sources: Sequence[signals.SignalSource]) -> tuple[dict[str, signals.Value], list[str]]:
    """All values that can be read now, by name, and the errors of the others."""
    found: dict[str, signals.Value] = {}
    problems = []
    for source in sources:
        try:
            found[source.name] = source.read()
        except signals.NoSignal as error:
            problems.append(str(error))
    return found, problems


@pytest.fixture
def server() -> Iterator[Serving]:
    with serving(200) as running:
        yield running


def asked(server: Serving) -> tuple[dict[str, signals.Value], list[str]]:
    url = f"{server.url}/api/v1/query?query=sum(queue)"
    return values(signals.sources([f"queue={url}"]))


def result(kind: str, value: object) -> dict[str, object]:
    return {"status": "success", "data": {"resultType": kind, "result": value}}


def test_a_file_holds_a_number(tmp_path: Path) -> None:
    (tmp_path / "queue").write_text(" 12.5\n")
    assert values(signals.sources([f"queue=file:{tmp_path}/queue"])) == ({"queue": 12.5}, [])


def test_a_file_may_hold_a_number_for_each_host(tmp_path: Path) -> None:
    (tmp_path / "price").write_text(' {"h1": 0.9, "h2": 2}\n')
    assert values(signals.sources([f"price=file:{tmp_path}/price"])) == ({"price": {"h1": 0.9, "h2": 2.0}}, [])


@pytest.mark.parametrize("text", ["", "many", "nan", "inf", "{", '{"h1": "dear"}', '{"h1": NaN}', '{"h1": [1]}'])
def test_a_file_with_anything_else_is_told_and_gives_no_value(tmp_path: Path, text: str) -> None:
    (tmp_path / "queue").write_text(text)
    found, (problem,) = values(signals.sources([f"queue=file:{tmp_path}/queue"]))
    assert found == {}
    assert problem.startswith(f"--observe queue: file:{tmp_path}/queue ")


def test_a_missing_file_does_not_keep_other_signals_back(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("1")
    found, problems = values(signals.sources([f"a=file:{tmp_path}/none", f"b=file:{tmp_path}/there"]))
    assert found == {"b": 1.0}
    assert problems == [f"--observe a: file:{tmp_path}/none cannot be read: No such file or directory"]


@pytest.mark.parametrize(
    "answer", [result("scalar", [1.0, "42"]), result("vector", [{"metric": {}, "value": [1.0, "42"]}])]
)
def test_a_query_gives_a_scalar_or_one_sample(server: Serving, answer: object) -> None:
    server.body = json.dumps(answer).encode()
    assert asked(server) == ({"queue": 42.0}, [])


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (result("vector", []), "gives 0 samples; write a query with one, such as sum(…)"),
        (result("vector", [{"value": [1, "1"]}] * 2), "gives 2 samples; write a query with one, such as sum(…)"),
        (result("matrix", []), "gives neither a scalar nor a vector"),
        (result("scalar", [1.0, "NaN"]), "gives nan, which is not a finite number"),
        ({"status": "error"}, "does not answer like a Prometheus server"),
        ([], "does not answer like a Prometheus server"),
    ],
)
def test_any_other_answer_is_told_in_one_line(server: Serving, answer: object, problem: str) -> None:
    server.body = json.dumps(answer).encode()
    found, (told,) = asked(server)
    assert found == {}
    assert told.endswith(problem)


def test_a_server_that_refuses_is_told_with_its_code(server: Serving) -> None:
    server.codes = [403]
    assert "answers 403 Forbidden" in asked(server)[1][0]


@pytest.mark.parametrize("text", ["queue", "=file:x", "queue=", "queue=file:", "a b=file:x", "queue=ftp://h/x"])
def test_what_names_no_source_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--observe .*: write NAME=file:PATH or NAME=http"):
        signals.sources([text])


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://u:hush@h/x", "a user or password"),
        ("http://hush@h/x", "a user"),
        ("https://h/api/v1/query?query=up&token=hush", "a secret ('token')"),
        ("https://h/x?apikey=hush", "a secret ('apikey')"),
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        signals.sources([f"queue={url}"])
    assert str(caught.value).startswith(f"--observe queue holds {what}, which would appear in the log")
    assert "hush" not in str(caught.value)


def test_a_token_comes_from_a_variable(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    server.body = json.dumps(result("scalar", [1.0, "42"])).encode()
    monkeypatch.setenv(OBSERVE_TOKEN, "hush")
    assert asked(server) == ({"queue": 42.0}, [])
    assert server.headers[-1]["Authorization"] == "Bearer hush"
    server.codes = [302]  # its target would get the token
    assert "answers 302 Found" in asked(server)[1][0]


def test_a_name_is_given_once() -> None:
    with pytest.raises(UsageError, match="--observe a is given twice"):
        signals.sources(["a=file:x", "a=file:y"])
