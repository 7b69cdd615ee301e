#!/usr/bin/env bash
# Real clients against `pelton serve`: installs the client, starts the server on free ports and a fresh
# directory, runs the scenarios with 1 and with 2 shards, stops it, and starts it once more on what it left.
# Where the client cannot be had, a line says that nothing was run. PYTHON names a python that has it.
set -euo pipefail
cd "$(dirname "$0")"
bin=${PELTON:?name the binary: PELTON=target/debug/pelton}
work=$(mktemp -d)
server=
stop() { [[ -z $server ]] || kill -TERM "$server" 2>/dev/null || true; }
trap 'stop; rm -rf "$work"' EXIT

if [[ -z ${PYTHON:-} ]]; then
  if ! { python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q pulsar-client==3.13.0 certifi; } >"$work/pip" 2>&1
  then
    echo "NOT RUN: the Python client cannot be installed: $(tail -1 "$work/pip")"
    exit 0
  fi
  PYTHON=$work/venv/bin/python
fi

start() { # SHARDS DIR
  "$bin" serve --data "$2" --listen 127.0.0.1:0 --shard-port-base 0 --shards "$1" >"$work/out" 2>"$work/err" &
  server=$!
  until grep -q ^ready: "$work/out"; do
    kill -0 "$server" 2>/dev/null || { cat "$work/err" >&2; server=; exit 1; }
    sleep 0.05
  done
  url=$(sed -n 's/^ready: \([^ ]*\).*/\1/p' "$work/out")
}

ended() { # it drained, and says that all it took is as durable as promised
  local pid=$server
  server=
  kill -TERM "$pid"
  wait "$pid"
  grep '^clean shutdown' "$work/out"
}

for shards in 1 2; do
  echo "--- $shards shard(s)"
  start "$shards" "$work/data-$shards"
  timeout 180 "$PYTHON" basics.py "$url"
  "$PYTHON" restart.py "$url" before
  ended
  start "$shards" "$work/data-$shards"
  "$PYTHON" restart.py "$url" after
  ended
done
