#!/usr/bin/env bash
# start-cluster.sh COMMAND...: run COMMAND, JupyterLab, with this machine's Ray node next to it.
#
# The node has a session of its own: the signal that ends the container reaches JupyterLab and its kernels, and the node
# gets its own when they are gone. A node that cannot start, or dies, does not take the lab along: it says why in the
# container's log and in its record, which `make status` shows, and is started again.
set -uo pipefail
longest_pause=30

say() { printf 'rocmlab: %s\n' "$*" >&2; }

await() { # PID: wait for its end, whatever signals come meanwhile, and return its exit code
  while kill -0 "$1" 2>/dev/null; do wait "$1"; done
  wait "$1" # Bash remembers
}

keep_node() { # until it is told to end
  local node='' ending='' status pause=1 started
  trap 'ending=yes; if [[ $node ]]; then kill -TERM "$node" 2>/dev/null; fi' TERM
  while [[ ! $ending ]]; do
    started=$SECONDS status=0
    rocmlab cluster node &
    node=$!
    if [[ $ending ]]; then kill -TERM "$node"; fi # which came before there was one
    await "$node" || status=$?
    if [[ $ending ]]; then break; fi
    if ((SECONDS - started > 60)); then pause=1; fi # it had been up
    say "the Ray node ended with exit code $status, and the lab continues without it; it is started again in $pause s"
    sleep "$pause" &
    node=$!
    await "$node"
    pause=$((pause * 2 < longest_pause ? pause * 2 : longest_pause))
  done
}

if [[ ${1:-} == --keep-node ]]; then
  keep_node
  exit 0
fi

rm -f "/tmp/rocmlab-ray-$UID"-*/node.json # what a node said that ended with the container
trap : TERM INT
"$@" &
command=$!
setsid "$0" --keep-node &
keeper=$!
status=0
await "$command" || status=$?
kill -TERM "$keeper" 2>/dev/null
await "$keeper"
exit "$status"
