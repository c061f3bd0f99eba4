"""A copy of the tree without .venv, and a bare environment."""

import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@pytest.fixture
def fresh_tree(tmp_path: Path) -> Path:
    """Return a copy of the tree, like a clone."""
    ignored = shutil.ignore_patterns(
        ".venv*", ".git", "__pycache__", ".*_cache", "*.egg-info", ".hypothesis", "demo-out"
    )
    return Path(shutil.copytree(ROOT, tmp_path / "a tree", ignore=ignored))


@pytest.fixture
def bare_environment(tmp_path: Path) -> dict[str, str]:
    """Return HOME, PATH and the sources of packages, with the user's cache of wheels, so that nothing is built
    twice."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {"HOME": str(home), "PATH": SYSTEM_PATH}
    cache = os.environ.get("XDG_CACHE_HOME", "")
    environment["XDG_CACHE_HOME"] = cache if cache.startswith("/") else str(Path("~/.cache").expanduser())
    pip_settings = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "pip" / "pip.conf"
    if pip_settings.exists():
        environment["PIP_CONFIG_FILE"] = str(pip_settings)
    sources = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "PIP_CONFIG_FILE", "TORCH_INDEX")
    return environment | {name: os.environ[name] for name in sources if os.environ.get(name)}


@pytest.fixture
def base_python() -> str:
    """Return the interpreter from which the tests' environment was made."""
    return f"{sys.base_exec_prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
