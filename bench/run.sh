#!/usr/bin/env bash
# ./run bench [NAME ARGS...]: runs the benchmark program NAME with ARGS; without a name lists them.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
programs=$root/build/bench

if [ $# -eq 0 ]; then
  for program in "$programs"/bench_*; do basename "$program" | sed 's/^bench_//'; done
  exit
fi
name=$1
shift
if [ ! -x "$programs/bench_$name" ]; then
  printf 'error: there is no benchmark %s\n  hint: ./run bench lists them\n' "$name" >&2
  exit 2
fi
if [ "$name" = qad_step ] && [[ " $* " == *" --peers "* ]]; then
  exec "$root/.venv/bin/python" "$root/bench/pairs.py" --program "$programs/bench_qad_step" "$@"
fi
exec "$programs/bench_$name" "$@"
