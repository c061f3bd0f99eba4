# shellcheck shell=bash
# Sourced by CI. Tests with real processes share two cores with other tests, so one may fail by chance. At most two of a
# step may do so: each then has to pass three times alone, and is listed as unstable, for somebody to mend. A unit test,
# and whatever else fails, has no such excuse.
unstable=()

# The last lines of all runs of pytest in a log.
summaries_of() { grep -E '^=+ .*(passed|failed|error|no tests ran).* in [0-9.]+s.*=+$' "$1" || true; }

# passes_alone LOG RUNS: whether what failed in that log of RUNS runs of pytest, all with an end, is unstable only.
passes_alone() {
    local log="$1" runs="$2" failed again
    (($(summaries_of "$log" | wc -l) == runs)) || return 1
    mapfile -t failed < <(sed -nE '/^(FAILED|ERROR) tests\// { s/^[A-Z]+ //; s/ - .*//; p }' "$log" | sort -u)
    ((${#failed[@]} >= 1 && ${#failed[@]} <= 2)) || return 1
    if [[ " ${failed[*]}" == *" tests/unit/"* ]]; then return 1; fi
    for again in 1 2 3; do
        echo "ci: alone, $again of 3: ${failed[*]}"
        "${VENV:-.venv}/bin/python" -m pytest "${failed[@]}" || return 1
    done
    unstable+=("${failed[@]}")
}
