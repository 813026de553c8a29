#!/bin/sh
# Makes the virtual environment in $2 with the interpreter $1 and installs llmtrace with all that
# its tests and demo use.
set -eu
python=$1
venv=$2

"$python" - <<'CHECK' || exit 1
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit(f"llmtrace needs Python 3.11 to 3.13, and this is {sys.version.split()[0]}: "
             "run make PYTHON=python3.12, say")
CHECK

if ! "$python" -m venv "$venv" 2>/dev/null; then
    # Debian and Ubuntu ship venv apart from Python.
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        echo "Installing python3-venv ..."
        apt-get update -qq && apt-get install -y -qq python3-venv
        "$python" -m venv "$venv"
    else
        echo "python3 -m venv does not work here; on Debian or Ubuntu: apt-get install python3-venv" >&2
        exit 1
    fi
fi
echo "Installing llmtrace and what its tests and demo use into $venv (about a minute) ..."
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --editable . --group real --group lint
touch "$venv/.ready"
