#!/bin/sh
# Runs all tests: those against real parts, which mostly wait, beside all the others, which compute.
# What the others say is printed once the real ones are over. $1 is the Python to run them with;
# with --again only what failed before is run, one after the other.
set -u
python=$1
cd "$(dirname "$0")/.."
mkdir -p .pytest_cache
if [ "${2:-}" = --again ]; then
    echo
    echo "Once more, what failed:"
    status=0
    for which in others real; do
        failed=.pytest_cache/$which/v/cache/lastfailed
        [ -s "$failed" ] && [ "$(cat "$failed")" != "{}" ] || continue
        "$python" -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$failed" \
            >>.pytest_cache/retried
        "$python" -m pytest -o "cache_dir=.pytest_cache/$which" --last-failed || status=1
    done
    exit "$status"
fi
# A shell has what it runs beside itself ignore Ctrl-C, which some of the tests are about.
heard='import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])'
"$python" -c "$heard" -m pytest -o cache_dir=.pytest_cache/others -m "not real" \
    >.pytest_cache/others.log 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null' INT TERM
status=0
"$python" -m pytest -o cache_dir=.pytest_cache/real tests/real || status=1
wait "$beside" || status=1
echo
echo "The tests that need no real parts:"
cat .pytest_cache/others.log
exit "$status"
