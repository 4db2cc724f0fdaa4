#!/bin/bash
# provision.sh [PROJECT]: install crckpt from PROJECT (default: the parent of this file's directory) on this Debian machine,
# as root. Run it again after a change: it installs only what is missing or has changed.
set -euo pipefail
project=$(realpath "${1:-$(dirname "$0")/..}")

missing=()
for package in ca-certificates gcc iproute2 libc6-dev nftables python3-venv; do
  status=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>&1) || true
  [ "$status" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} = 0 ]; then
  echo "packages: all installed"
else
  echo "packages: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  apt-get -qq install --yes --no-install-recommends "${missing[@]}"
fi

"$project/scripts/install"
/usr/local/bin/crckpt doctor
