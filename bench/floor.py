"""The floor of a QAD step: nothing but its matrix products (teacher, student, gradients of input and weight) by torch, in the shapes of
bench/qad_step.cpp with tokens spread evenly over the experts. Prints one JSON line as that program does."""
import argparse
import json
import resource
import time

import torch

parser = argparse.ArgumentParser()
for name, default in {"steps": 5, "threads": 2, "hidden": 512, "layers": 4, "experts": 16, "topk": 4, "inter": 256, "vocab": 8192, "heads": 8, "kv": 4, "head-dim": 64, "seq": 512, "mbs": 2}.items():
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--dtype", default="auto")
a = parser.parse_args()
torch.set_num_threads(a.threads)
if a.dtype == "auto":
    a.dtype = "bfloat16" if "avx512_bf16" in open("/proc/cpuinfo").read() else "float32"
dtype, tokens = getattr(torch, a.dtype), a.mbs * a.seq
q, kv, routed = a.heads * a.head_dim, a.kv * a.head_dim, tokens * a.topk // a.experts
shapes = [(tokens, a.hidden, q), (tokens, a.hidden, kv), (tokens, a.hidden, kv), (tokens, q, a.hidden)] * a.layers
shapes += [(routed, a.hidden, 2 * a.inter), (routed, a.inter, a.hidden)] * (a.experts * a.layers) + [(tokens, a.hidden, a.vocab)]
inputs = {(m, k): torch.randn(m, k).to(dtype) for m, k, _ in shapes}
weights = {(k, n): torch.randn(n, k).to(dtype) for _, k, n in shapes}


def step():
    for m, k, n in shapes:
        x, w = inputs[m, k], weights[k, n]
        y = x @ w.t()
        y = x @ w.t()
        y @ w
        y.t() @ x


seconds = []
for _ in range(a.steps + 1):
    start = time.time()
    step()
    seconds.append(time.time() - start)
seconds = sorted(seconds[1:])
median = seconds[len(seconds) // 2]
print(json.dumps({"peer": "floor", "dtype": a.dtype, "tok_s": tokens / median, "s_step": median, "min": seconds[0], "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}))
