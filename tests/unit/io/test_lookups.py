"""The entries a path leads through, links followed: what a watch has to watch."""

from pathlib import Path

from hvd_elastic_ext.io.file_watch import MAX_LINKS, lookups


def below(tmp_path: Path, path: Path) -> list[str]:
    root = tmp_path.resolve()
    return [str(entry.relative_to(root)) for entry in lookups(path) if root in entry.parents]


def test_a_plain_file_leads_through_each_of_its_directories(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/hosts").touch()
    assert below(tmp_path, tmp_path / "a/hosts") == ["a", "a/hosts"]


def test_the_list_ends_with_the_first_entry_that_is_missing(tmp_path):
    assert below(tmp_path, tmp_path / "a/b/hosts") == ["a"]


def test_a_configmap_leads_through_both_of_its_links(tmp_path):
    (tmp_path / "..1").mkdir()
    (tmp_path / "..1/hosts").touch()
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "hosts").symlink_to("..data/hosts")
    assert below(tmp_path, tmp_path / "hosts") == ["hosts", "..data", "..1", "..1/hosts"]


def test_an_absolute_link_starts_over_at_the_root(tmp_path):
    (tmp_path / "real").touch()
    (tmp_path / "hosts").symlink_to(tmp_path / "real")
    assert below(tmp_path, tmp_path / "hosts")[-1] == "real"


def test_dots_are_taken_after_the_link_before_them(tmp_path):
    (tmp_path / "x/y").mkdir(parents=True)
    (tmp_path / "x/hosts").touch()
    (tmp_path / "link").symlink_to("x/y")
    assert below(tmp_path, tmp_path / "link/../hosts")[-1] == "x/hosts"


def test_links_in_a_circle_come_to_an_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert len(lookups(tmp_path / "a")) <= len(tmp_path.parts) + MAX_LINKS


def test_a_path_no_system_call_accepts_ends_the_list(tmp_path):
    assert lookups(tmp_path / "a\0b")[-1] == tmp_path.resolve() / "a\0b"
