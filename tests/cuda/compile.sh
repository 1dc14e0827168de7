#!/usr/bin/env bash
# compile.sh ARCH...: every *_cuda.cu through nvcc for the given compute capabilities. Exits 77 without nvcc.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
nvcc=${CUDACXX:-$(command -v nvcc || true)}
[ -n "$nvcc" ] || { [ -x /usr/local/cuda/bin/nvcc ] && nvcc=/usr/local/cuda/bin/nvcc; } || true
if [ -z "$nvcc" ]; then
  echo "SKIPPED: there is no nvcc here, so NO CUDA KERNEL WAS COMPILED (install CUDA toolkit 13, or set CUDACXX)"
  exit 77
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
codes=()
for arch in "$@"; do codes+=(-gencode "arch=compute_$arch,code=sm_$arch"); done
"$nvcc" --version | grep release
for source in "$root"/src/*/*_cuda.cu; do
  "$nvcc" -c "$source" -o "$out/$(basename "$source").o" -std=c++20 -I"$root/src" -fmad=false --expt-relaxed-constexpr -Werror all-warnings "${codes[@]}"
  echo "compiled ${source#"$root"/} for $*"
done
