"""Every kind of store, each empty and by itself."""

from __future__ import annotations

import itertools
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvd_elastic_ext.checkpoint.stores.local import LocalStore
from hvd_elastic_ext.checkpoint.stores.store import Store, open_store
from tests.support.fake_disk import Disk

KINDS = ("folder", "fake disk", "memory", "s3", "ftp")

Opener = Callable[[], Store]
"""Opens the same store again, as another process would."""

_count = itertools.count()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """An S3 server on this machine; its address."""
    pytest.importorskip("s3fs", reason="needs s3fs; make setup installs it")
    pytest.importorskip("moto", reason="needs moto; make setup installs it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what these libraries warn of is theirs
        from moto.server import ThreadedMotoServer

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
        server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def ftp_server(tmp_path: Path) -> Iterator[int]:
    """The port of an FTP server on this machine with one user. A driver has one connection to it, as to real ones."""
    pytest.importorskip("pyftpdlib", reason="needs pyftpdlib; make setup installs it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of asyncore
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.handlers import FTPHandler
        from pyftpdlib.servers import FTPServer

    users = DummyAuthorizer()
    users.add_user("test", "test", str(tmp_path), perm="elradfmwMT")
    server = FTPServer(("127.0.0.1", 0), type("Handler", (FTPHandler,), {"authorizer": users}))
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            server.serve_forever(timeout=0.02, blocking=False, handle_exit=False)
        server.close_all()

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.address[1]
    ended.set()
    thread.join()


@pytest.fixture(params=KINDS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    kind = request.param
    if kind == "folder":
        return lambda: LocalStore(tmp_path / "deep" / "checkpoints")
    if kind == "fake disk":
        disk = Disk()
        return lambda: LocalStore(Path("/deep/checkpoints"), disk)
    if kind == "memory":
        name = f"memory://checkpoints-{next(_count)}"
        return lambda: open_store(name)
    if kind == "ftp":
        port = request.getfixturevalue("ftp_server")
        return lambda: open_store(f"ftp://127.0.0.1:{port}/jobs/one", {"username": "test", "password": "test"})
    assert kind == "s3", f"{kind}: say here how it is opened"
    address = request.getfixturevalue("s3_server")
    options = {
        "key": "test",
        "secret": "test",
        "client_kwargs": {"endpoint_url": address, "region_name": "us-east-1"},
    }
    import s3fs

    bucket = f"bucket-{next(_count)}"
    s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket=bucket)
    # In turns two that know nothing of each other, as two processes would.
    turns = itertools.cycle([True, False])
    return lambda: open_store(f"s3://{bucket}/jobs/one", {**options, "default_fill_cache": next(turns)})


@pytest.fixture
def store(opener: Opener) -> Store:
    return opener()
