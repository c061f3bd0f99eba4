"""The frame, in a pytest of its own, on test files that misbehave."""

import os
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from tests.support import marks
from tests.support.processes import RunningProcess, run_process
from tests.support.pytest_plugin import FRESH
from tests.support.waiting import wait_until


@pytest.fixture
def pytest_on(tmp_path):
    """Run pytest with the frame on a file of the given text: ``with pytest_on(text) as process``."""

    def start(text: str, **env: str):
        (tmp_path / "test_it.py").write_text(
            "import os, pytest, subprocess, sys, threading, time\n" + textwrap.dedent(text)
        )
        (tmp_path / "torch.py").write_text("class cuda:\n    is_available = staticmethod(lambda: False)\n")
        (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs one\npythonpath = .\n")
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.support.pytest_plugin",
            "-p",
            "no:cacheprovider",
            "-ra",
            "-s",
            str(tmp_path),
        ]
        return run_process(argv, cwd=tmp_path, env={**FRESH, **env})

    return start


def pid_said(process: RunningProcess) -> int:
    return int(process.wait_for(r"pid=(\d+)").group(1))


MISBEHAVING = """
    from tests.support.waiting import wait_until
    stop = threading.Event()

    def test_sees_no_cluster_of_the_user():
        assert "KUBECONFIG" not in os.environ
        assert "KUBERNETES_SERVICE_HOST" not in os.environ

    def test_process():
        subprocess.Popen(["sleep", "97"], start_new_session=True)

    def test_process_without_environment():
        subprocess.Popen(["/bin/sleep", "97"], env={}, start_new_session=True)

    def test_orphan_in_its_own_session():
        code = "import subprocess as s; p = s.Popen(['sleep', '98'], start_new_session=True); print(f'pid={p.pid}')"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_thread():
        threading.Thread(target=stop.wait, name="forgotten").start()

    def test_daemon_of_our_code():
        def ours():
            wait_until(stop.is_set, what="the end", timeout=100)
        ours.__module__ = "hvd_elastic_ext.something"
        threading.Thread(target=ours, name="runs our code", daemon=True).start()

    def test_daemon_that_we_started():
        globals_of_ours = {"__name__": "discover.publish.server", "threading": threading, "stop": stop}
        exec("threading.Thread(target=stop.wait, name='started by us', daemon=True).start()", globals_of_ours)

    def test_foreign_daemon():
        threading.Thread(target=stop.wait, name="foreign", daemon=True).start()

    def test_file_in_shared_memory():
        open("/dev/shm/MEMORY-file", "w").close()

    def test_folder_in_shared_memory():
        os.makedirs("/dev/shm/MEMORY-folder/inner")

    def test_collected_tests_are_not_looked_through_for_garbage():
        import gc
        assert gc.isenabled()
        assert gc.get_freeze_count() > 10_000

    def test_nothing():
        stop.set()
"""


def test_each_leak_fails_its_test_alone_is_named_and_removed(pytest_on):
    memory = f"hvd-frame-{os.getpid()}"
    of_the_user = {"KUBECONFIG": "/the/users", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    with pytest_on(MISBEHAVING.replace("MEMORY", memory), **of_the_user) as process:
        orphan = pid_said(process)
        assert process.wait() == 1
        assert process.tree() == []
    assert marks.start_time(orphan) is None
    assert not list(Path("/dev/shm").glob(f"{memory}*"))
    assert "12 passed, 8 errors" in process.output
    told = {each.split()[0]: each for each in process.output.split("ERROR at teardown of ")[1:]}
    said = {
        "test_process": ": sleep 97",
        "test_process_without_environment": ": /bin/sleep 97",
        "test_orphan_in_its_own_session": f"process {orphan}: sleep 98",
        "test_thread": "thread 'forgotten'",
        "test_daemon_of_our_code": "thread 'runs our code'",
        "test_daemon_that_we_started": "started by discover.publish.server",
        "test_file_in_shared_memory": f"shared memory /dev/shm/{memory}-file",
        "test_folder_in_shared_memory": f"shared memory /dev/shm/{memory}-folder",
    }
    assert told.keys() == said.keys()
    assert [name for name, words in said.items() if words not in told[name]] == []
    assert "thread 'foreign'" not in process.output


LEAVES = """
    def test_leaves_a_file():
        made = "import tempfile as t; print(f'made={t.NamedTemporaryFile(delete=False).name}', flush=True)"
        subprocess.run([sys.executable, "-c", f"{made}; import os; os.kill(os.getpid(), 9)"])
"""


def test_temporary_files_of_killed_processes_are_in_a_folder_that_goes_with_the_session(pytest_on):
    with pytest_on(LEAVES) as process:
        made = Path(process.wait_for(r"made=(\S+)").group(1))
        assert process.wait() == 0, process.output
    assert made.parent.parent == Path(tempfile.gettempdir())
    assert made.parent.name.startswith(f"hvdt-{process.pid}-")
    assert not made.parent.exists()


HOLDERS = {
    "an open file": "f = open({path!r}, 'w')",
    "an open folder": "import os; os.mkdir({path!r}); f = os.open({path!r}, os.O_RDONLY)",
    # A semaphore has no open file, and is mapped under another name than its own.
    "a semaphore": "import multiprocessing; e = multiprocessing.get_context('spawn').Event(); open({path!r}, 'w')",
}


def mapped_memory(pid: int) -> set[str]:
    """Names in shared memory that lead to what the process has mapped; its map may have others."""
    device = os.stat("/dev/shm").st_dev
    place = f"{os.major(device):02x}:{os.minor(device):02x}"
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    mapped = {int(line[4]) for line in lines if line[3] == place}
    return {entry.name for entry in os.scandir("/dev/shm") if entry.inode() in mapped}


@pytest.mark.parametrize("holder", HOLDERS)
def test_shared_memory_of_other_programs_stays(pytest_on, tmp_path, holder):
    came = tmp_path / "came" if holder == "a semaphore" else Path("/dev/shm", f"hvd-frame-{os.getpid()}")
    stranger = f"import time; {HOLDERS[holder].format(path=str(came))}; time.sleep(100)"
    text = f"""
        def test_looks_on():
            open({str(tmp_path / "go")!r}, "w").close()
            while not os.path.exists({str(came)!r}):
                time.sleep(0.01)
    """
    theirs: set[str] = set()
    try:
        with pytest_on(text) as process:
            wait_until((tmp_path / "go").exists, what="the inner test")
            with run_process([sys.executable, "-c", stranger]) as other:
                wait_until(came.exists, what="the stranger")
                theirs = {path.name for path in (came,) if path.parent == Path("/dev/shm")} or mapped_memory(other.pid)
                assert theirs
                assert process.wait() == 0, process.output
                assert theirs <= set(os.listdir("/dev/shm"))
    finally:
        came.rmdir() if came.is_dir() else came.unlink(missing_ok=True)
        for name in theirs:  # a killed process leaves its semaphores
            Path("/dev/shm", name).unlink(missing_ok=True)


def test_processes_of_a_wider_fixture_may_outlive_a_test_but_not_the_session(pytest_on):
    text = """
        @pytest.fixture(scope="module")
        def tidy():
            process = subprocess.Popen(["sleep", "96"])
            thread = threading.Thread(target=process.wait)
            thread.start()
            yield
            process.kill()
            thread.join()

        @pytest.fixture(scope="session")
        def untidy():
            return subprocess.Popen(["sleep", "97"])

        def test_first(tidy, untidy):
            pass

        def test_second(tidy, untidy):
            pass
    """
    with pytest_on(text) as process:
        assert process.wait() == 1
        assert "2 passed" in process.output
        assert "error" not in process.output
        assert "the session left behind" in process.output
        assert "sleep 97" in process.output
        assert "sleep 96" not in process.output


def test_the_next_session_removes_the_leftovers_of_a_killed_one(pytest_on):
    text = """
        def test_hangs():
            print("pid=%d" % subprocess.Popen(["sleep", "97"], start_new_session=True).pid, flush=True)
            time.sleep(100)
    """
    with pytest_on(text) as process:
        orphan = pid_said(process)
        process.kill()
        process.popen.wait(10)
        assert marks.start_time(orphan) is not None
        with pytest_on("def test_nothing(): pass") as following:
            assert following.wait() == 0
            assert f"removed what a killed session had left: process {orphan}: sleep 97" in following.output
        assert marks.start_time(orphan) is None


SKIPS = """
    def test_plain():
        pytest.skip("no fun today")

    def test_cluster():
        pytest.skip("needs a cluster: kind create cluster")

    @pytest.mark.xfail
    def test_known_to_fail():
        assert False

    @pytest.mark.gpu
    def test_device():
        import torch
        assert torch.cuda.is_available()
"""


@pytest.mark.parametrize(
    ("strict", "code", "said"),
    [
        ("1", 1, ["1 failed, 2 skipped, 1 xfailed", "skipped under HVD_TEST_STRICT=1: no fun today"]),
        ("", 0, ["3 skipped, 1 xfailed", "needs a GPU: torch sees no CUDA device"]),
    ],
    ids=["strict", "not strict"],
)
def test_strict_mode_fails_skips_unless_a_gpu_or_a_cluster_is_missing(pytest_on, strict, code, said):
    with pytest_on(SKIPS, HVD_TEST_STRICT=strict) as process:
        assert process.wait() == code, process.output
        assert all(each in process.output for each in said)


@pytest.mark.parametrize(("left_out", "code"), [(True, 0), (False, 1)], ids=["set up without", "it should be there"])
def test_strict_mode_fails_without_tensorflow_unless_the_environment_was_set_up_so(pytest_on, left_out, code):
    text = f"""
        from tests.support import tensorflow
        tensorflow.left_out = lambda: {left_out}

        @pytest.mark.parametrize("reason", [tensorflow.MISSING, tensorflow.KERAS_3_MISSING])
        def test_it(reason):
            pytest.skip(reason)
    """
    with pytest_on(text, HVD_TEST_STRICT="1") as process:
        assert process.wait() == code, process.output
        assert "needs TensorFlow: make test WITH=tensorflow" in process.output
        assert "needs Keras 3: make test WITH=tensorflow" in process.output


def test_a_file_that_skips_itself_fails_in_strict_mode(pytest_on):
    text = 'pytest.importorskip("no_such_module_anywhere")'
    with pytest_on(text, HVD_TEST_STRICT="1") as process:
        assert process.wait() != 0
        assert "no_such_module_anywhere" in process.output
    with pytest_on(text) as process:
        assert process.wait() == 5  # nothing collected


def test_files_whose_tests_may_take_longest_run_first(pytest_on, tmp_path):
    (tmp_path / "test_long.py").write_text(
        "import pytest\n\n\n@pytest.mark.timeout(9)\ndef test_takes_long():\n    print('long')\n"
    )
    with pytest_on("def test_is_short():\n    print('short')\n") as process:
        assert process.wait() == 0, process.output
    assert process.output.index("long\n") < process.output.index("short\n")


def test_a_file_without_the_wanted_marker_is_not_imported(pytest_on, tmp_path):
    (tmp_path / "test_marked.py").write_text("import pytest\n\n\n@pytest.mark.gpu\ndef test_it():\n    pass\n")
    text = "raise RuntimeError('imported')"
    with pytest_on(text, PYTEST_ADDOPTS="-m gpu") as process:
        assert process.wait() == 0, process.output
    with pytest_on(text, PYTEST_ADDOPTS="-m 'not gpu'") as process:
        assert process.wait() == 2, process.output


def test_each_worker_imports_its_own_share_of_the_files_first_and_each_file_once(pytest_on, tmp_path):
    text = """
        with open({log!r}, "a") as log:
            print(os.environ["PYTEST_XDIST_WORKER"], __name__, file=log)

        def test_it():
            pass
    """.format(log=str(tmp_path / "log"))
    (tmp_path / "test_broken.py").write_text("raise OSError('a broken file is reported as ever')\n")
    (tmp_path / "test_other.py").write_text("import os\n" + textwrap.dedent(text))
    with pytest_on(text, PYTEST_ADDOPTS="-p xdist -n 2 --import-mode=importlib") as process:
        assert process.wait() == 1, process.output
    assert "OSError: a broken file is reported as ever" in process.stdout
    imported = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    first = {worker: [name for each, name in imported if each == worker] for worker in ("gw0", "gw1")}
    assert first == {"gw0": ["test_other", "test_it"], "gw1": ["test_it", "test_other"]}
