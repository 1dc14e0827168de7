"""./run bench qad_step --peers: our step and the floor of its matrix products (and, with --peer-script, other programs), one after the
other in turn, and the ratio of each pair. A ratio of one pair is of two runs a few seconds apart, so that a busy machine shows as
spread and not as a result."""
import argparse
import json
import pathlib
import platform
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--program", required=True, help="bench_qad_step")
parser.add_argument("--format", default="nvfp4", help="one format, or several with commas, or all")
parser.add_argument("--pairs", type=int, default=5)
parser.add_argument("--peer-script", help="another program that takes the same shape options and prints such a line, e.g. peer_qad.py")
parser.add_argument("--peer-options", default="", help="what it is given besides, e.g. '--peer angelslim --angelslim CHECKOUT'")
parser.add_argument("--json", action="store_true")
parser.add_argument("--peers", action="store_true")
known, shape = parser.parse_known_args()
formats = ["nvfp4", "nvfp4a16", "w4a16", "w8a8", "fp8", "w4afp8"] if known.format == "all" else known.format.split(",")


def line(*command):
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))} failed:\n{result.stderr[-2000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = next((text.split(":")[1].strip() for text in info.splitlines() if text.startswith("model name")), platform.processor())
    flags = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {flag} " in info.replace("\n", " ")]
    return f"{model}, {info.count('processor')} cores, {' '.join(flags)}"


rows = []
print(machine(), file=sys.stderr)
for format in formats:
    ours, floors, others = [], [], []
    for _ in range(known.pairs):
        floors.append(line(sys.executable, HERE / "floor.py", *shape))
        ours.append(line(known.program, "--format", format, *shape))
        if known.peer_script:
            others.append(line(sys.executable, known.peer_script, "--fmt", format, *known.peer_options.split(), *shape))
    row = {"format": format, "dtype": ours[0]["dtype"], "s_step": statistics.median(x["s_step"] for x in ours), "floor": statistics.median(x["s_step"] for x in floors),
           "ratios": sorted(x["s_step"] / y["s_step"] for x, y in zip(ours, floors)), "peak_rss_mb": max(x["peak_rss_mb"] for x in ours), "loss": ours[0]["loss"]}
    row["ratio"] = statistics.median(row["ratios"])
    if others:
        row["peer"] = statistics.median(x["s_step"] for x in others)
        row["peer_ratio"] = statistics.median(y["s_step"] / x["s_step"] for x, y in zip(ours, others))
        row["peer_peak_rss_mb"] = max(x["peak_rss_mb"] for x in others)
    rows.append(row)
    print(f"{format:9} {row['dtype']}: {row['s_step']:.3f} s a step, floor {row['floor']:.3f} s: {row['ratio']:.2f} times the floor ({row['ratios'][0]:.2f} to {row['ratios'][-1]:.2f}), peak "
          f"{row['peak_rss_mb']} MB" + (f"; the peer takes {row['peer_ratio']:.2f} times our time and {row['peer_peak_rss_mb']} MB" if others else ""), file=sys.stderr)
if known.json:
    print(json.dumps({"machine": machine(), "rows": rows}))
