#!/usr/bin/env bash
# Everything that only a GPU can show, in at most 10 minutes: builds with CUDA in build-cuda/, compares every kernel with the CPU, then runs
# the parity and layout checks with --device cuda. Ends with a table; exit code 0: all passed, 1: something failed, 2: this machine cannot.
#   ./run device-check            SCALEWRIGHT_DEVICE_PYTHON=python: an interpreter with a CUDA wheel of torch 2.11 or newer
#                                 SCALEWRIGHT_DEVICE_BUILD=folder (build-cuda), SCALEWRIGHT_DEVICE_SECONDS=600
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${SCALEWRIGHT_DEVICE_BUILD:-$root/build-cuda}
deadline=$((SECONDS + ${SCALEWRIGHT_DEVICE_SECONDS:-600}))
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT

cannot() { printf 'device-check: %s\n' "$@" >&2; exit 2; }

# What is needed.
command -v nvidia-smi >/dev/null && nvidia-smi -L >"$log/gpus" 2>&1 && grep -q '^GPU' "$log/gpus" || cannot "there is no NVIDIA GPU here, so NOTHING WAS CHECKED (nvidia-smi finds none)" \
  "  without a GPU the kernels' bodies are tested by ./run test (cuda_emulated, cuda_compile)"
cat "$log/gpus"
python=
for candidate in ${SCALEWRIGHT_DEVICE_PYTHON:-python3 "$root/.venv/bin/python"}; do
  "$candidate" -c 'import torch, sys; v = tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2]); sys.exit(not (torch.version.cuda and v >= (2, 11) and torch.cuda.is_available()))' \
    2>/dev/null && { python=$(command -v "$candidate"); break; }
done
[ -n "$python" ] || cannot "no Python here has a CUDA wheel of torch 2.11 or newer that sees the GPU (set SCALEWRIGHT_DEVICE_PYTHON)"
nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || cannot "there is no nvcc (set CUDACXX, or put CUDA toolkit 13 on the PATH)"
for tool in g++ cmake; do command -v $tool >/dev/null || cannot "there is no $tool"; done
for header in yaml-cpp/yaml.h nlohmann/json.hpp CLI/CLI.hpp xxhash.h gtest/gtest.h benchmark/benchmark.h; do
  echo "#include <$header>" | g++ -std=c++20 -x c++ -fsyntax-only - 2>/dev/null || cannot "the header <$header> is missing (apt-get install libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libxxhash-dev libgtest-dev libbenchmark-dev)"
done

names=() verdicts=() seconds=()
failed=0
# step NAME COMMAND...: runs it within the time that is left and notes the verdict; the output of a failure is shown.
step() {
  local name=$1 begin=$SECONDS code left=$((deadline - SECONDS))
  shift
  if [ $left -le 0 ]; then
    code=124
    : >"$log/out"
  else
    timeout -k 5 $left "$@" >"$log/out" 2>&1
    code=$?
  fi
  names+=("$name") seconds+=($((SECONDS - begin)))
  if [ $code = 0 ]; then verdicts+=(passed)
  elif [ $code = 124 ]; then verdicts+=("NO TIME LEFT") failed=1
  else
    verdicts+=("FAILED ($code)") failed=1
    printf -- '--- %s\n' "$name"
    tail -n 40 "$log/out"
  fi
  return $code
}
table() {
  printf '\n%-64s %8s  %s\n' check seconds verdict
  local i
  for i in "${!names[@]}"; do printf '%-64s %8s  %s\n' "${names[$i]}" "${seconds[$i]}" "${verdicts[$i]}"; done
}

# Build for the GPU that is here.
arch=$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability(0))')
generator=(); command -v ninja >/dev/null && generator=(-G Ninja)
step "configure (CUDA kernels for sm_$arch)" env CUDACXX="$nvcc" cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DSCALEWRIGHT_CUDA=ON \
    -DSCALEWRIGHT_CUDA_ARCHITECTURES="$arch" -DPython3_EXECUTABLE="$python" &&
  step "build" cmake --build "$build" --target test_cuda scalewright -j "$(nproc)" || { table; exit 1; }

# Every kernel against the CPU.
step "kernels against the CPU (tests/cuda)" "$build/tests/test_cuda"
kernels=$?
sed -n '/^kernel /,$p' "$log/out"

# The model against transformers' and the peer's answers, on one GPU and in layouts. Loose where float32 sums differ in order.
program=$build/scalewright
parity() {   # parity RANKS MODEL TOLERANCE WORDS...
  local ranks=$1 folder=$root/tests/data/reference/$2 tolerance=$3
  shift 3
  local words=(parity --model "$folder" --expected "$folder/expected.safetensors" --device cuda --tolerance "$tolerance" "$@")
  [ "$ranks" = 1 ] && step "parity ${folder##*/} ${*}" "$program" "${words[@]}" && return
  [ "$ranks" = 1 ] || step "parity ${folder##*/} ${*} on $ranks ranks" "$program" launch --nproc "$ranks" -- "${words[@]}"
}
for model in llama qwen2 qwen3 qwen3_moe hy_v3; do parity 1 $model 1e-8 --dtype float64; done
for model in llama qwen3_moe; do parity 1 $model 1e-5 --dtype float32; done
for format in nvfp4 nvfp4a16 w4a16 w8a8 fp8 w4afp8; do parity 1 qwen3_moe 1e-4 --dtype float64 --format $format --grad; done
parity 1 hy_v3 1e-4 --dtype float64 --format nvfp4 --grad
parity 2 qwen3_moe 1e-4 --dtype float64 --format w8a8 --grad --tp 2
parity 2 qwen3_moe 1e-4 --dtype float64 --format nvfp4 --grad --ep 2
parity 2 qwen3_moe_mixed 1e-4 --dtype float64 --format w4a16 --grad --cp 2
parity 2 qwen3_moe 1e-4 --dtype float64 --format fp8 --grad --pp 2
parity 4 hy_v3 1e-4 --dtype float64 --format nvfp4 --grad --tp 2
parity 8 qwen3_moe 1e-4 --dtype float64 --format nvfp4 --grad --tp 2 --cp 2 --pp 2

table
[ $failed = 0 ] && [ "$kernels" = 0 ] && { echo "device-check: all passed"; exit 0; }
echo "device-check: FAILED"
exit 1
