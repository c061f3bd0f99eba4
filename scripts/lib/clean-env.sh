# shellcheck shell=bash
# Sourced by every script here: the user's own Python settings must not leak into the tree's environment.

ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)"
VENV="$ROOT/.venv"
export ROOT VENV

unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONUSERBASE PYTHONNOUSERSITE VIRTUAL_ENV CONDA_PREFIX
# Bytecode is kept: else each of some hundred launchers, agents and workers of a test run compiles this package again.
unset PYTHONDONTWRITEBYTECODE
unset PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT __PYVENV_LAUNCHER__

# Sets up if necessary, then enters the tree.
enter_tree() {
    "$ROOT/scripts/setup"
    cd -- "$ROOT" || exit 1
}

# The interpreter for the tooling, and the default for the virtual environment: Horovod and this package need 3.10.
find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -I -c 'import sys; raise SystemExit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    echo "No Python 3.10 or newer on PATH. Debian 12: apt-get install python3 python3-venv" >&2
    return 1
}

# An environment made by a virtual environment's python3 breaks when that one goes, and one made by plain "python3"
# when that name moves to the next Python. So take the base interpreter, by its versioned name.
base_python() {
    "$1" -I -c 'import os, sys
base = os.path.join(sys.base_exec_prefix, "bin", "python%d.%d" % sys.version_info[:2])
print(base if os.path.exists(base) else sys.executable)'
}

run_tooling() {
    local module="$1" python
    shift
    python="$(find_python)" || exit 1
    python="$(base_python "$python")"
    cd -- "$ROOT" || exit 1
    # -E and -s: no PYTHON* variables, no user site. Not -I, which would hide the tooling package as well.
    exec "$python" -E -s -B -c 'import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("tooling." + sys.argv.pop(1), run_name="__main__", alter_sys=True)' "$ROOT/scripts" "$module" "$@"
}
