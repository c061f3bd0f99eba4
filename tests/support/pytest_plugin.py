"""The pytest plugin behind tests/conftest.py.

* A test that leaves a process, a thread, a namespace or shared memory behind fails, and what it left is removed
  (:mod:`tests.support.leaks`).
* What a killed session left is removed when the next one starts (:mod:`tests.support.leftovers`).
* Processes that tests start make temporary files in a folder of the session, which is removed at its end: one that is
  killed leaves its own, such as those in which TensorFlow writes the functions that it translates.
* ``HVD_TEST_STRICT=1`` turns skips into failures, except for a missing GPU, cluster, permission to make cgroups, or
  program of ``ALLOWED_SKIPS``; and for TensorFlow, where .venv was set up without it.
* An ``async def`` test runs in an event loop of its own. Arguments that are async context managers are entered before.
* ``@pytest.mark.gpu`` skips where there is no CUDA device.
* Files with the longest tests run first, so that none of them is the last one of a run.
* Each worker of xdist first imports its own share of the files: to compile all of them, with their assertions, takes as
  long as everything else before the first test, and each worker needs all of them.
* The garbage collector leaves collected tests alone: they and what they import are most objects of a process, and stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.support import leaks, leftovers, marks, tensorflow
from tests.support.clock import ManualClock

STRICT = "HVD_TEST_STRICT"
TMPDIR = "TMPDIR"
FRESH = {
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    STRICT: None,
    "HVD_TEST_GRACE_S": "0.1",
}
"""Environment of a pytest that a test starts."""
CLUSTER = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
"""Variables that are removed: a program of a test must not find the cluster that the tests run in, or the user's."""
ASYNC_TEST_S = 90.0
SLOW_S = 120
"""Assumed seconds of a slow test without a time limit."""
ALLOWED_SKIPS = (
    "needs a GPU",
    "needs a cluster",
    "needs a memory cgroup",
    "needs a Horovod with MPI",
    *(f"needs {program}" for program in ("promtool", "chromium", "kfp", "zsh", "fish")),
)


WITH_TENSORFLOW = (tensorflow.MISSING, tensorflow.KERAS_3_MISSING)
"""Allowed where the environment was set up without TensorFlow."""


class Frame:
    """State of one session. Tests are numbered from 1; number 0 is the session with its wider fixtures."""

    def __init__(self) -> None:
        outer = os.environ.get(marks.MARK)
        self.outer = outer
        self._base = f"{outer}/{marks.owner()}" if outer else marks.owner()
        self._number = itertools.count(1)
        self.session_mark = f"{self._base}-0"
        self.test_mark = self.session_mark
        self.before = leaks.NOTHING
        self.wide = leaks.NOTHING
        self.at_start = leaks.snapshot()
        self.late: list[str] = []
        os.environ[marks.MARK] = self.session_mark
        self._outer_folder = os.environ.get(TMPDIR)
        folder = Path(tempfile.gettempdir())  # from now on the one of this process, whatever the variable says
        if folder.name.startswith(marks.PREFIX):  # of the session around this one
            tempfile.tempdir = str(folder := folder.parent)
        self.folder = folder / f"{marks.PREFIX}{marks.owner()}-tmp"
        self.folder.mkdir(exist_ok=True)
        self.folder.chmod(0o1777)  # some processes of tests belong to another user
        os.environ[TMPDIR] = str(self.folder)

    def begin(self) -> None:
        self.test_mark = f"{self._base}-{next(self._number)}"
        os.environ[marks.MARK] = self.test_mark
        self.before = leaks.snapshot()

    def end(self) -> list[str]:
        os.environ[marks.MARK] = self.session_mark
        return leaks.remove_leaks(self.test_mark, since=self.before, but=self.wide)

    def finish(self) -> list[str]:
        lines = leaks.remove_leaks(self.session_mark, since=self.at_start)
        for name, outer in ((marks.MARK, self.outer), (TMPDIR, self._outer_folder)):
            if outer is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = outer
        shutil.rmtree(self.folder, ignore_errors=True)
        return lines


_FRAME = pytest.StashKey[Frame]()


def pytest_configure(config: pytest.Config) -> None:
    for name in CLUSTER:
        os.environ.pop(name, None)
    config.stash[_FRAME] = Frame()
    config.add_cleanup(leaks.watch_thread_starts())


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [f"removed what a killed session had left: {line}" for line in leftovers.remove_leftovers()]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore a file if its text shows that no test in it has a marker that ``-m`` requires."""
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    wanted = [f"mark.{name}" for name in config.getoption("markexpr").split(" and ") if name.isidentifier()]
    text = collection_path.read_text() if wanted else ""
    return True if any(mark not in text for mark in wanted) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """In a worker of xdist: import a share of the files, and so leave their bytecode to all other workers."""
    worker = getattr(collector.config, "workerinput", None)
    if worker is None or not isinstance(collector, pytest.Session):
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in _files(collector.config)[number::count]:
        with contextlib.suppress(Exception, pytest.skip.Exception):  # whatever it is, it is met again, and reported
            importlib.import_module(".".join(path.relative_to(collector.config.rootpath).with_suffix("").parts))


def _files(config: pytest.Config) -> list[Path]:
    """All test files of the folders that this run is about, unless these are few; paths of packages only."""
    folders = [folder for word in config.args if (folder := config.invocation_params.dir / word).is_dir()]
    found = sorted({path for folder in folders for path in folder.rglob("test_*.py")})
    return [path for path in found if not pytest_ignore_collect(path, config)]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    limits = Counter[Path]()
    for item in items:
        limits[item.path] += _limit_s(item)
    items.sort(key=lambda item: -limits[item.path])
    wanting = [item for item in items if item.get_closest_marker("gpu") is not None]
    missing = _missing_gpu() if wanting else None
    for item in wanting:
        if missing is not None:
            item.add_marker(pytest.mark.skip(reason=missing))


def _limit_s(item: pytest.Item) -> int:
    """Return the longest time of a test in seconds. It only decides the order of files."""
    said = item.get_closest_marker("timeout")
    if said is not None:
        return int(said.args[0])
    return SLOW_S if item.get_closest_marker("soak") is not None else 0


def _missing_gpu() -> str | None:
    try:
        import torch
    except ImportError as error:
        return f"needs a GPU: torch cannot be imported ({error}); install it on a machine with a CUDA device"
    return (
        None if torch.cuda.is_available() else "needs a GPU: torch sees no CUDA device; run this on a machine with one"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    item.config.stash[_FRAME].begin()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Assign what a module- or session-scoped fixture starts to the session, not to the first test."""
    if fixturedef.scope == "function":
        return (yield)
    frame = request.config.stash[_FRAME]
    before = leaks.snapshot()
    os.environ[marks.MARK] = frame.session_mark
    try:
        return (yield)
    finally:
        os.environ[marks.MARK] = frame.test_mark
        frame.wide |= leaks.snapshot() - before


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an ``async def`` test in an event loop of its own, within its arguments that are async context managers."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for name, value in given.items():
                if isinstance(value, contextlib.AbstractAsyncContextManager):
                    given[name] = await stack.enter_async_context(value)
            await asyncio.wait_for(pyfuncitem.obj(**given), ASYNC_TEST_S)

    asyncio.run(run())
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        lines = item.config.stash[_FRAME].end()
        if lines:
            pytest.fail("the test left behind (removed now, but for threads):\n" + "\n".join(lines), pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    frame = session.config.stash[_FRAME]
    frame.late = frame.finish()
    if frame.late:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for line in config.stash[_FRAME].late:
        terminalreporter.write_line(f"FAILED: the session left behind (removed now): {line}", red=True)


def _strict(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure, unless it is allowed."""
    if os.environ.get(STRICT) != "1" or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = said.removeprefix("Skipped: ")
    if not (reason.startswith(ALLOWED_SKIPS) or (reason in WITH_TENSORFLOW and tensorflow.left_out())):
        report.outcome = "failed"
        report.longrepr = f"skipped under {STRICT}=1: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _strict(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _strict(report)
    return report


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that moves only by ``advance``."""
    return ManualClock()
