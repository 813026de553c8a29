#!/usr/bin/env sh
# The real programs that tests run against, from Debian or Ubuntu. What is there already stays.
# Without root or apt it says what is missing and goes on: those tests then skip (in CI they fail).
set -eu
missing=""
while read -r program package; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $package"
done <<'PROGRAMS'
nginx nginx-light
haproxy haproxy
chromium chromium
ip iproute2
prometheus prometheus
prometheus-alertmanager prometheus-alertmanager
npm npm
PROGRAMS
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
    echo "not installed:$missing (needs apt-get, as root)" >&2
    exit 0
fi
if [ ! -e /usr/sbin/policy-rc.d ]; then
    # A service that starts by itself would take a port that is not wanted.
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
fi
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 - a list of packages
apt-get install -y -qq --no-install-recommends $missing >/dev/null
