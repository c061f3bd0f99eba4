"""The import hook: nothing without a link, and the user's sitecustomize still runs."""

from __future__ import annotations

import socket
from pathlib import Path

import hvd_elastic_ext
from tests.unit.worker.python_with_hook import HOOK, python

ROOT = Path(hvd_elastic_ext.__file__).parents[1]
LOOK = "import sys; print([type(f).__name__ for f in sys.meta_path if type(f).__name__ == '_Finder'])"


def test_it_does_nothing_in_a_program_without_a_link() -> None:
    done = python(LOOK + "; print('hvd_elastic_ext' in sys.modules)", path=HOOK)
    assert (done.stdout, done.stderr) == ("[]\nFalse\n", "")


def test_with_a_link_it_waits_for_horovod_to_be_imported_and_loads_nothing_else() -> None:
    one, other = socket.socketpair()
    with one, other:
        code = LOOK + "; print('hvd_elastic_ext' in sys.modules, 'dataclasses' in sys.modules)"
        done = python(code, path=HOOK, link=other)
        assert (done.stdout, done.stderr) == ("['_Finder']\nFalse False\n", "")


def test_the_users_own_sitecustomize_is_loaded_as_if_ours_were_not_there(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.theirs = __file__\n")
    code = "import sys, sitecustomize; print(sys.theirs == sitecustomize.__file__)"
    done = python(code, path=f"{HOOK}:{tmp_path}")
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_an_error_in_the_users_own_sitecustomize_is_shown_and_the_hook_is_there_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    one, other = socket.socketpair()
    with one, other:
        done = python(LOOK, path=f"{HOOK}:{tmp_path}", link=other)
    assert done.stdout == "['_Finder']\n"
    assert "ValueError: theirs" in done.stderr


def test_an_isolated_python_ignores_the_hook(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert python(LOOK, "-I", path=HOOK, link=other).stdout == "[]\n"
        assert python(LOOK, "-S", path=HOOK, link=other).stdout == "[]\n"


def test_another_environments_python_finds_our_package_and_nothing_beside_it(tmp_path: Path) -> None:
    package = tmp_path / "horovod" / "common"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "basics.py").write_text("class HorovodBasics:\n    def init(self): pass\n")
    one, other = socket.socketpair()
    with one, other:
        # Without site-packages there is no package of ours, as in an environment that never heard of it.
        code = (
            f"import sys; sys.path.insert(0, {HOOK!r}); import sitecustomize\n"
            f"sys.path[0] = {str(tmp_path)!r}\n"
            "from horovod.common.basics import HorovodBasics\n"
            "import hvd_elastic_ext\n"
            "print(HorovodBasics.init.__wrapped__.__qualname__, any('site-packages' in p for p in sys.path))"
        )
        done = python(code, "-I", "-S", path="", link=other)
    assert (done.stdout, done.stderr) == ("HorovodBasics.init False\n", "")


def test_no_other_module_lies_there_that_would_hide_one_of_the_users() -> None:
    assert sorted(path.name for path in Path(HOOK).glob("*.py")) == ["__init__.py", "sitecustomize.py"]


def test_a_mistake_in_a_script_is_shown_without_our_own_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from hvd_elastic_ext.worker.data.sampler import ElasticSampler\nElasticSampler(range(3), seed='x')\n"
    )
    one, other = socket.socketpair()
    with one, other:
        done = python(f"import runpy; runpy.run_path({str(script)!r})", path=f"{HOOK}:{ROOT}", link=other)
    assert f'File "{script}", line 2, in <module>' in done.stderr
    assert "sampler.py" not in done.stderr
    assert done.stderr.endswith(
        "UsageError: ElasticSampler: seed is 'x'; give a whole number, the same on every rank\n"
    )
