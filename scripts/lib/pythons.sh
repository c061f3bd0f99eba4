# shellcheck shell=bash
# Sourced after clean-env.sh. Runs something on each supported Python that is installed, and ends with a table of results.

PYTHONS="${PYTHONS:-python3.10 python3.11 python3.12 python3.13}"
results=()
failed=0
found=0

# By its name on PATH, or that of pyenv, whose shims on PATH may not run.
find_exactly() {
    local candidate
    for candidate in "$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/${1#python}".*/bin/"$1"; do
        if "$candidate" -I -c 'import venv, ensurepip' >/dev/null 2>&1; then
            base_python "$candidate"
            return 0
        fi
    done
    return 1
}

# What is installed is a copy of the tree, like a clone, since a build leaves files behind.
copy_tree() {
    mkdir "$1"
    tar -C "$ROOT" --exclude='./.venv*' --exclude=./.git --exclude=__pycache__ --exclude='*.egg-info' \
        --exclude='./.hvd-elastic' --exclude='./build' -c . | tar -C "$1" -x
}

# on_each_python FUNCTION: calls FUNCTION NAME INTERPRETER, which calls `result` for everything that it tried.
on_each_python() {
    local name python
    for name in $PYTHONS; do
        if python="$(find_exactly "$name")"; then
            found=1
            "$1" "$name" "$python"
        else
            results+=("$name: not here")
            if [[ "${HVD_TEST_STRICT:-}" == 1 ]]; then failed=1; fi
        fi
    done
}

# result WHAT OUTCOME: a line of the table. An outcome in capitals has failed.
result() {
    results+=("$1: $2")
    if [[ "$2" =~ ^[A-Z] ]]; then failed=1; fi
}

# The table, and the exit code: 1 if anything failed, or nothing was tried.
conclude() {
    echo "$1:" >&2
    printf '  %s\n' "${results[@]}" >&2
    if [[ "$found" == 0 ]]; then
        echo "$1: nothing was tested: none of these is installed with venv and ensurepip; name one in PYTHONS" >&2
        failed=1
    fi
    exit "$failed"
}
