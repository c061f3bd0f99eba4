"""Where credentials are looked for, and what becomes of them for those who do without the client's own requests."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import yaml
from kubernetes import client
from urllib3.exceptions import InsecureRequestWarning

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.kube.access import Access, Endpoint
from hvd_elastic_ext.io.kube.errors import ApiError


def test_a_file_that_is_named_comes_before_the_pods_account_and_that_before_the_users_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    named, told, users = tmp_path / "named", tmp_path / "told", tmp_path / ".kube/config"
    users.parent.mkdir()
    for each in (named, told, users):
        each.touch()
    in_a_pod = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    assert Access.found(named, {**in_a_pod, "KUBECONFIG": str(told)}) == Access(str(named))
    several = f"/nowhere:{told}"
    assert Access.found(None, {**in_a_pod, "KUBECONFIG": several}) == Access(several)
    assert Access.found(None, {"KUBECONFIG": several}) == Access(several)
    for nothing in ("", "/nowhere"):
        assert Access.found(None, {**in_a_pod, "KUBECONFIG": nothing}) == Access()
    assert Access.found(None, in_a_pod) == Access()
    assert Access.found(None, {}) == Access("~/.kube/config")


def test_where_there_is_nothing_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="--kubeconfig /nowhere: there is no such file"):
        Access.found(Path("/nowhere"), {})
    with pytest.raises(UsageError, match="this is not a pod, and /nowhere does not exist; give --kubeconfig FILE"):
        Access.found(None, {"KUBECONFIG": "/nowhere"})
    with pytest.raises(UsageError, match="does not exist; ask somebody"):
        Access.found(None, {}, remedy="ask somebody")


def test_credentials_that_cannot_be_read_are_told_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "kubeconfig"
    broken.write_text("a: [\nb")
    for access, where in ((Access(str(broken)), broken), (Access(account=tmp_path), tmp_path)):
        with pytest.raises(ApiError) as told:
            access.configuration()
        assert str(told.value).startswith(f"credentials cannot be read: {where}: ")
        assert "\n" not in str(told.value)


def test_a_server_that_is_not_verified_is_told_of_once_and_by_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written = tmp_path / "kubeconfig"
    cluster = {"server": "https://10.0.0.1", "insecure-skip-tls-verify": True}
    written.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    for _ in range(3):
        assert not Access(str(written)).configuration().verify_ssl
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert caplog.messages[0].startswith(f"kubeconfig {written}: insecure-skip-tls-verify is set")
    with warnings.catch_warnings(record=True) as told:
        Access(str(written)).configuration()
        warnings.warn("one for each request", InsecureRequestWarning, stacklevel=1)
    assert told == []


def configured(**fields: object) -> client.Configuration:
    made = client.Configuration(host="https://10.0.0.1:6443/k8s/c-1/")
    made.proxy = made.no_proxy = None
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_door_is_what_the_client_was_told() -> None:
    made = configured(
        ssl_ca_cert="/ca",
        cert_file="/cert",
        key_file="/key",
        tls_server_name="api",
        proxy="http://p:1",
        no_proxy="a, b,",
    )
    made.api_key["authorization"] = "Bearer t-1\n"
    assert Endpoint.of(made) == Endpoint(
        url="https://10.0.0.1:6443/k8s/c-1",
        headers={"authorization": "Bearer t-1"},
        authority="/ca",
        certificate="/cert",
        key="/key",
        verify=True,
        check_name=True,
        server_name="api",
        proxy="http://p:1",
        no_proxy=("a", "b"),
    )
    assert "t-1" not in repr(Endpoint.of(made))


def test_a_door_without_checks_has_none() -> None:
    door = Endpoint.of(configured(verify_ssl=False, assert_hostname=False))
    assert (door.verify, door.check_name, door.headers) == (False, False, {})


@pytest.mark.parametrize("token", ["two\nlines", "\x00", "ü"])
def test_a_token_that_no_header_can_hold_is_none_and_not_told(token: str) -> None:
    made = configured()
    made.api_key["authorization"] = f"Bearer {token}"
    with pytest.raises(ApiError) as told:
        Endpoint.of(made)
    assert token not in str(told.value)
