"""Alibaba's SDK where the real one is absent."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.unit.worker.python_with_hook import HOOK, python

KUBEAI = (
    "import kubeai, kubeai.elastic, kubeai.handler, sys\n"
    "print([m.check_alive() for m in (kubeai, kubeai.elastic, kubeai.handler)], kubeai.handler.init())\n"
    "print([name for name in ('torch', 'numpy', 'horovod') if name in sys.modules])"
)


@pytest.mark.parametrize("installed", [True, False])
def test_alibabas_names_are_ours_where_the_real_ones_are_absent(installed: bool) -> None:
    bare = f"import sys; sys.path.insert(0, {HOOK!r}); import sitecustomize; del sys.path[0]\n"
    one, other = socket.socketpair()
    with one, other:
        if installed:
            done = python(KUBEAI, path=HOOK, link=other)
        else:
            done = python(bare + KUBEAI, "-I", "-S", path="", link=other)
    assert (done.stdout, done.stderr) == ("[True, True, True] None\n[]\n", "")


def test_a_package_of_that_name_goes_first_and_nothing_of_ours_is_put_into_it(tmp_path: Path) -> None:
    (tmp_path / "kubeai").mkdir()
    (tmp_path / "kubeai" / "__init__.py").write_text("theirs = True\n")
    code = "import kubeai; print(kubeai.theirs)\ntry:\n  import kubeai.elastic\nexcept ImportError as e: print(e.name)"
    one, other = socket.socketpair()
    with one, other:
        done = python(code, path=f"{HOOK}:{tmp_path}", link=other)
    assert (done.stdout, done.stderr) == ("True\nkubeai.elastic\n", "")


def test_without_a_link_there_is_no_kubeai_of_ours() -> None:
    done = python("import kubeai", path=HOOK)
    assert "No module named 'kubeai'" in done.stderr
