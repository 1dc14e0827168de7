"""The source tree keeps its shape: data flows one way between modules, files stay short, and no machine's paths slip in."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_FILE = 500
CODE = {".cpp", ".h", ".cu", ".cuh", ".py", ".sh"}
NOT_OURS = ("tests/data/", "examples/tiny/fixture/")


def repository_files():
    """Tracked files and new ones that git does not ignore, as paths relative to the root."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    paths = [Path(name) for name in names.stdout.decode().split("\0") if name]
    return [path for path in paths if (ROOT / path).is_file() and not str(path).startswith(NOT_OURS)]


def module_of_target(target):
    return "app" if target == "appcmd" else target


def allowed_modules():
    """module -> modules it may include, itself and those it reaches through others included, from CMakeLists.txt."""
    calls = re.findall(r"^scalewright_module\(([^)]*)\)", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)
    direct = {module_of_target(call.split()[0]): [module_of_target(word) for word in call.split()[1:]] for call in calls}
    allowed = {}
    for module, uses in direct.items():  # in data-flow order, so what a module uses is already complete
        allowed[module] = {module}.union(*(allowed.get(used, set()) for used in uses))
    return allowed


def layer_violations(module, text, allowed):
    """Includes of `text`, a file of `module`, that lead to a module it may not use."""
    modules = re.findall(r'^\s*#\s*include\s+"([^"/]+)/', text, re.MULTILINE)
    return [used for used in modules if used not in allowed[module]]


def test_the_module_list_is_read_rightly():
    allowed = allowed_modules()
    assert allowed["base"] == {"base"}
    assert allowed["store"] == {"store", "base"}
    assert {"model", "quant", "ops", "store", "config", "base"} <= allowed["train"]
    assert "app" not in allowed["train"]
    assert layer_violations("store", '#include "base/json.h"\n#include "train/loss.h"\n', allowed) == ["train"]


def test_no_file_includes_a_module_above_it():
    allowed = allowed_modules()
    seen = 0
    for path in repository_files():
        if path.parts[0] != "src" or len(path.parts) < 3 or path.suffix not in CODE:
            continue
        module = path.parts[1]
        assert module in allowed, f"{path}: the module is not listed in CMakeLists.txt"
        violations = layer_violations(module, (ROOT / path).read_text(), allowed)
        assert not violations, f"{path} includes {violations}, but {module} may only use {sorted(allowed[module])}"
        seen += 1
    assert seen > 20


def test_torch_is_never_included_whole():
    for path in repository_files():
        if path.suffix in {".cpp", ".h", ".cu"}:
            assert not re.search(r"^\s*#\s*include\s*[<\"]torch/torch\.h", (ROOT / path).read_text(), re.MULTILINE), f"{path}: 31 s a file"


def test_no_code_file_is_longer_than_the_limit():
    for path in repository_files():
        if path.suffix in CODE or path.name == "run":
            lines = (ROOT / path).read_text().count("\n")
            assert lines <= LONGEST_FILE, f"{path} has {lines} lines"


def test_no_file_names_a_machines_path():
    needle = b"/" + b"work/"
    for path in repository_files():
        content = (ROOT / path).read_bytes() if (ROOT / path).stat().st_size < 1 << 20 else b""
        if b"\0" not in content:
            assert needle not in content, f"{path}: a path of one machine"
