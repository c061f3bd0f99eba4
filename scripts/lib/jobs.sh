# shellcheck shell=bash
# Sourced. Sets SIDE_BY_SIDE: pytest's options for JOBS test files at a time (default: DEFAULT_JOBS); none for one.
# Most tests wait for processes more than they compute: two cores have room for three or four of them.
JOBS="${JOBS:-$DEFAULT_JOBS}"
if ! [[ "$JOBS" =~ ^[1-9][0-9]*$ ]]; then
    echo "tests: JOBS is '$JOBS'; give how many files of tests may run at a time, such as JOBS=1" >&2
    exit 2
fi
SIDE_BY_SIDE=()
# In the order that tests/support/pytest_plugin.py gives the files: the longest first.
# shellcheck disable=SC2034  # for whoever sources this
if ((JOBS > 1)); then SIDE_BY_SIDE=(-n "$JOBS" --dist loadfile --no-loadscope-reorder); fi
