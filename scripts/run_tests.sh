#!/bin/sh
# Runs all tests in two processes that take about as long: those against real parts, others'
# libraries and the collector's store, beside all the others.
# What the others say is printed once the real ones are over. $1 is the Python to run them with;
# with --again only those tests of time (marked `timing`) that failed before are run, one after the
# other; any other failure stays one.
set -u
python=$1
cd "$(dirname "$0")/.."
mkdir -p .pytest_cache
if [ "${2:-}" = --again ]; then
    echo
    echo "Once more, what failed:"
    status=0
    for which in others real; do
        good=.pytest_cache/$which/failed_for_good
        if [ -s "$good" ]; then
            echo "Not run again, since time is nothing to them:"
            sort -u "$good"
            status=1
        fi
        failed=.pytest_cache/$which/v/cache/lastfailed
        [ -s "$failed" ] && [ "$(cat "$failed")" != "{}" ] || continue
        LLMTRACE_RETRIED=.pytest_cache/retried "$python" -m pytest \
            -o "cache_dir=.pytest_cache/$which" --last-failed -m timing
        # 5: nothing that failed is a test of time.
        case $? in 0 | 5) ;; *) status=1 ;; esac
    done
    exit "$status"
fi
# A shell has what it runs beside itself ignore Ctrl-C, which some of the tests are about.
heard='import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])'
rm -f .pytest_cache/*/failed_for_good
mkdir -p .pytest_cache/real .pytest_cache/others
"$python" -c "$heard" -m pytest -o cache_dir=.pytest_cache/others -m "not real" \
    --ignore=tests/contact --ignore=tests/collector --durations=40 --durations-min=2 \
    >.pytest_cache/others.log 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null' INT TERM
status=0
# A run that is cut short has not said what failed.
ended() {
    [ "$2" = 0 ] || status=1
    [ "$2" -le 1 ] || echo "pytest ended with status $2" >>".pytest_cache/$1/failed_for_good"
}
"$python" -m pytest -o cache_dir=.pytest_cache/real tests/real tests/contact tests/collector \
    --durations=20 --durations-min=10
ended real $?
wait "$beside"
ended others $?
echo
echo "All the others:"
cat .pytest_cache/others.log
exit "$status"
