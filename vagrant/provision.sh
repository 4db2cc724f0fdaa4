#!/bin/bash
# provision.sh [PROJECT]: install crckpt from PROJECT (default: the parent of this file's directory) on this Debian machine,
# as root. Run it again after a change: it installs only what is missing or has changed.
set -euo pipefail
project=$(realpath "${1:-$(dirname "$0")/..}")
venv=/opt/crckpt

missing=()
for package in ca-certificates iproute2 nftables python3-venv; do
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

"$project/scripts/install-criu"

# pip takes seconds even if nothing has changed: keep the digest of what it installed.
digest=$(cd "$project" && find crckpt pyproject.toml -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
if [ -e "$venv/installed" ] && [ "$digest" = "$(cat "$venv/installed")" ]; then
  echo "crckpt: already installed from this source"
else
  [ -x "$venv/bin/pip" ] || /usr/bin/python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --upgrade "$project"
  echo "$digest" > "$venv/installed"
fi
ln -sfn "$venv/bin/crckpt" /usr/local/bin/crckpt

/usr/local/bin/crckpt --version
/usr/local/bin/crckpt doctor
