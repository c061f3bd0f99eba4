# shellcheck shell=bash
# Sourced: SIDE_BY_SIDE, the options of pytest for JOBS files of tests at a time (DEFAULT_JOBS, if nothing is said). One
# is as if there were no such option.
# Most tests wait for processes more than they compute: two cores have room for three of them.
JOBS="${JOBS:-$DEFAULT_JOBS}"
if ! [[ "$JOBS" =~ ^[1-9][0-9]*$ ]]; then
    echo "tests: JOBS is '$JOBS'; give how many files of tests may run at a time, such as JOBS=1" >&2
    exit 2
fi
SIDE_BY_SIDE=()
# In the order in which they stand: the units, short all of them, come last, and no long one is left over for the end.
# shellcheck disable=SC2034  # for whoever sources this
if ((JOBS > 1)); then SIDE_BY_SIDE=(-n "$JOBS" --dist loadfile --no-loadscope-reorder); fi
