"""Files replaced as a whole, by one owner, only when they say something else."""

import contextlib
import os
import resource
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from discover.publish.files import FileLock, HostsFile, OwnedByOther, PublishFailed, Script, script_text
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Publication


def of(**slots: int) -> Publication:
    return Publication("life", 1, HostSet.of(slots))


@pytest.fixture
def hosts_file(tmp_path):
    made = HostsFile(tmp_path / "hosts")
    yield made
    made.close()


@contextlib.contextmanager
def full_disk():
    """No file may grow. Within it nothing else must be written: pytest's own output may be a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def names(directory) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def test_the_file_holds_bare_lines_and_is_for_all_to_read(hosts_file, tmp_path):
    before = os.umask(0o077)
    hosts_file.publish(of(a=4, b=2))
    os.umask(before)
    assert (tmp_path / "hosts").read_text() == "a:4\nb:2\n"
    assert stat.S_IMODE((tmp_path / "hosts").stat().st_mode) == 0o644


def test_the_same_again_writes_nothing(tmp_path):
    writes = []
    file = HostsFile(tmp_path / "hosts", wrote=lambda: writes.append(1))
    file.publish(of(a=4))
    inode = (tmp_path / "hosts").stat().st_ino
    file.publish(of(a=4))
    file.close()
    assert len(writes) == 1
    assert (tmp_path / "hosts").stat().st_ino == inode


def test_a_list_that_comes_back_after_another_one_could_not_be_written_is_written_nowhere(hosts_file, tmp_path):
    hosts_file.publish(of(old=1))
    inode = (tmp_path / "hosts").stat().st_ino
    with full_disk(), pytest.raises(PublishFailed):
        hosts_file.publish(of(new=1))
    hosts_file.publish(of(old=1))
    assert (tmp_path / "hosts").stat().st_ino == inode


def test_what_others_left_under_the_name_of_the_temporary_file_is_replaced_and_no_link_is_followed(tmp_path):
    (tmp_path / "other").write_text("theirs")
    file = HostsFile(tmp_path / "hosts")
    file.publish(of(a=1))
    (tmp_path / ".hosts.new").symlink_to("other")
    file.publish(of(b=1))
    file.close()
    assert ((tmp_path / "hosts").read_text(), (tmp_path / "other").read_text()) == ("b:1\n", "theirs")
    assert names(tmp_path) == {"hosts", "other", ".hosts.lock"}


@pytest.mark.parametrize("damage", ["remove", "edit", "mode"])
def test_a_file_changed_by_others_is_restored_by_the_next_call(hosts_file, tmp_path, damage):
    path = tmp_path / "hosts"
    hosts_file.publish(of(a=4))
    {"remove": path.unlink, "edit": lambda: path.write_text("x"), "mode": lambda: path.chmod(0o600)}[damage]()
    hosts_file.publish(of(a=4))
    assert path.read_text() == "a:4\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_hosts_file_makes_the_folders_that_are_missing(tmp_path):
    file = HostsFile(tmp_path / "a/b/hosts")
    file.publish(of(a=1))
    file.close()
    assert (tmp_path / "a/b/hosts").read_text() == "a:1\n"


def test_a_link_is_followed_and_kept(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "hosts").symlink_to("real/hosts")
    file = HostsFile(tmp_path / "hosts")
    file.publish(of(a=1))
    file.close()
    assert (tmp_path / "hosts").is_symlink()
    assert (tmp_path / "real/hosts").read_text() == "a:1\n"


def test_what_a_killed_owner_left_is_removed_by_the_next(tmp_path):
    (tmp_path / ".hosts.new").write_text("half")
    file = HostsFile(tmp_path / "hosts")
    file.own()
    assert ".hosts.new" not in names(tmp_path)
    file.close()


def test_after_a_full_disk_the_next_call_gets_through(tmp_path, hosts_file):
    hosts_file.publish(of(old=1))
    with full_disk(), pytest.raises(PublishFailed, match=r"what stood there before still stands$"):
        hosts_file.publish(of(new=1))
    assert (tmp_path / "hosts").read_text() == "old:1\n"
    assert names(tmp_path) == {"hosts", ".hosts.lock"}
    hosts_file.publish(of(new=1))
    assert (tmp_path / "hosts").read_text() == "new:1\n"


def test_a_directory_that_is_none_is_a_failure_not_a_crash(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PublishFailed, match="cannot write it"):
        HostsFile(tmp_path / "file/hosts").publish(of(a=1))


def test_links_in_a_circle_are_a_failure_not_a_crash(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    file = HostsFile(tmp_path / "a/hosts")
    with pytest.raises(PublishFailed, match="cannot write it"):
        file.publish(of(a=1))


def test_a_second_owner_is_refused_by_name(hosts_file, tmp_path):
    hosts_file.own()
    second = HostsFile(tmp_path / "hosts")
    with pytest.raises(OwnedByOther, match=rf"hosts: another hvd-discover \(process {os.getpid()}\)"):
        second.publish(of(a=1))


def test_another_name_of_the_same_file_is_refused_too(hosts_file, tmp_path):
    hosts_file.publish(of(a=1))
    (tmp_path / "link").symlink_to("hosts")
    with pytest.raises(OwnedByOther):
        HostsFile(tmp_path / "link").own()


def test_once_closed_the_next_may_own_it(hosts_file, tmp_path):
    hosts_file.own()
    hosts_file.close()
    hosts_file.close()
    second = HostsFile(tmp_path / "hosts")
    second.own()
    second.close()


def test_a_directory_removed_and_made_anew_is_owned_anew(tmp_path):
    file = HostsFile(tmp_path / "d/hosts")
    file.publish(of(a=1))
    (tmp_path / "d").rename(tmp_path / "gone")
    file.publish(of(a=1))
    with pytest.raises(OwnedByOther):
        FileLock(tmp_path / "d/hosts")
    file.close()
    assert (tmp_path / "d/hosts").read_text() == "a:1\n"


@pytest.mark.parametrize("left", [b"", b"a:x\n", b"\xff", None])
def test_an_earlier_file_that_is_none_gives_no_order(hosts_file, tmp_path, left):
    if left is not None:
        (tmp_path / "hosts").write_bytes(left)
    assert len(hosts_file.published_before()) == 0


@pytest.mark.parametrize("name", ["hosts", "quo'te $HOME\n-dash"])
def test_the_script_prints_the_file_whatever_it_is_called(tmp_path, name):
    (tmp_path / name).write_text("a:1\n")
    for text, more in _scripts(tmp_path / name):
        ran = subprocess.run(["sh", "-c", text], env={**os.environ, **more}, capture_output=True, text=True, cwd="/")
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "a:1\n", "")


def test_the_script_is_executable_by_all_and_succeeds_without_the_file(tmp_path):
    script = Script(tmp_path / "d.sh", hosts_file=tmp_path / "hosts")
    script.publish(of())
    script.close()
    assert stat.S_IMODE((tmp_path / "d.sh").stat().st_mode) == 0o755
    ran = subprocess.run([tmp_path / "d.sh"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_script_becomes_the_one_process_that_it_needs(tmp_path):
    (tmp_path / "hosts").write_text("a:1\n")
    (tmp_path / "cat").write_text('#!/bin/sh\necho "$PPID"\n')
    (tmp_path / "cat").chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for script, more in _scripts(tmp_path / "hosts"):
        ran = subprocess.run(["sh", "-c", script], env={**path, **more}, capture_output=True, text=True)
        assert int(ran.stdout) == os.getpid()


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox sh"])
@pytest.mark.parametrize("what", ["a folder", "a link to nothing", "gone since it was looked at"])
def test_whatever_is_in_the_way_of_the_script_it_prints_nothing_and_succeeds(tmp_path, shell, what):
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"there is no {shell} here; install it to have it tried")
    hosts = tmp_path / "hosts"
    if what == "a folder":
        hosts.mkdir()
    elif what == "a link to nothing":
        hosts.symlink_to(tmp_path / "nothing")
    for text, more in _scripts(hosts):
        blind = text.replace("[ -f ", "[ -n ").replace("[ -r ", "[ -n ") if what.startswith("gone") else text
        ran = subprocess.run([*shell.split(), "-c", blind], env={**os.environ, **more}, capture_output=True, text=True)
        assert (ran.returncode, ran.stdout) == (0, "")


def _scripts(hosts: Path) -> list[tuple[str, dict[str, str]]]:
    """Both, each with what it needs in the environment."""
    ready = (Path(__file__).parents[4] / "scripts" / "discover_hosts.sh").read_text()
    return [(script_text(hosts), {}), (ready, {"HVD_HOSTS_FILE": str(hosts)})]


def test_after_any_change_the_file_has_the_lines_of_the_last_list(hosts_file):
    hosts = {name: Host(name, 1 + at) for at, name in enumerate("abcdefg")}
    hosts["A"] = Host("a", 9)
    for names in ("abcdef", "abdef", "abdefg", "Abdefg", "g", "", "gab", "gab", "bag", "cbage", "dcbagef", "fe", "abc"):
        hosts_file.publish(Publication("life", 1, HostSet(tuple(hosts[name] for name in names))))
        assert hosts_file.path.read_text() == "".join(f"{hosts[name].name}:{hosts[name].slots}\n" for name in names)
