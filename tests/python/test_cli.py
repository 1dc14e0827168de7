"""The command line as a program: --json discipline, exit codes, messages, help, completion."""
import json
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SCALEWRIGHT_BINARY", str(ROOT / "build" / "scalewright"))


def run(*words, **extra):
    environment = {**os.environ, **extra.pop("env", {})}
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120, **extra)


def commands():
    names = re.findall(r"^  (\w+) {2,}\S", run("--help").stdout.split("Subcommands:")[1], re.M)
    assert {"config", "doctor", "completion"} <= set(names)
    return names


def write(folder, text):
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def test_help_of_every_command_shows_the_shared_options_and_their_defaults():
    for name in commands():
        result = run(name, "--help")
        assert result.returncode == 0, name
        for flag in ("--config", "-o", "--json", "--threads", "--device", "--dtype", "--seed", "--dry-run", "--profile", "--tp", "--sp"):
            assert re.search(rf"^  \S*{flag}\b", result.stdout, re.M), (name, flag)
        assert re.search(r"--dtype TEXT.*=auto", result.stdout), name


def test_version():
    assert re.fullmatch(r"scalewright \d+\.\d+\.\d+ \(libtorch \d\S+\)\n", run("--version").stdout)


@pytest.mark.parametrize("words, message", [
    ([], "no command given"),
    (["doctr"], "unknown command 'doctr' (did you mean 'doctor'?)"),
    (["doctor", "--thread", "2"], "unknown option '--thread' of 'doctor' (did you mean '--threads'?)"),
    (["doctor", "--dtpye=float32"], "did you mean '--dtype'?"),
    (["doctor", "--dtype", "float31"], "'float31' is not one of auto, float64, float32, bfloat16 (did you mean 'float32'?)"),
    (["doctor", "--threads", "010"], "'010' is not a whole number in decimal"),
    (["doctor", "--threads", "-3"], "--threads -3"),
    (["doctor", "surplus"], "surplus"),
    (["config", "chekc"], "did you mean 'check'?"),
    (["config", "check"], "config check needs a file"),
    (["config", "check", "no/such.yaml"], "no/such.yaml: no such file"),
    (["doctor", "-o", "train.stpes=1"], "-o train.stpes=1: unknown key 'train.stpes' (did you mean 'train.steps'?)"),
    (["doctor", "--tp", "0"], "tp 0"),
])
def test_wrong_usage_exits_2_with_a_hint_on_standard_error(words, message):
    result = run(*words)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stdout == ""


def test_more_ranks_than_one_are_refused():
    assert run("doctor", "--tp", "2").returncode == 2
    assert run("doctor", env={"WORLD_SIZE": "4"}).returncode == 2


def test_cuda_without_cuda_is_a_usage_error():
    if json.loads(run("doctor", "--json").stdout)["device"]["cuda"]:
        pytest.skip("this machine has CUDA")
    result = run("doctor", "--device", "cuda")
    assert result.returncode == 2 and "CUDA" in result.stderr


def test_json_leaves_one_document_on_standard_output(tmp_path):
    good = write(tmp_path, "train: {steps: 5}\n")
    for words in (["doctor"], ["config", "check", good], ["config", "show", good], ["config", "schema"], ["config", "reference"], ["completion", "bash"]):
        result = run(*words, "--json")
        assert result.returncode == 0, words
        assert isinstance(json.loads(result.stdout), dict), words


def test_json_reports_failures_too(tmp_path):
    bad = write(tmp_path, "train: {stpes: 5, lr: 0}\n")
    result = run("config", "check", bad, "--json")
    assert result.returncode == 2
    document = json.loads(result.stdout)
    assert document["exit_code"] == 2
    assert f"{bad}:1:9: unknown key 'train.stpes' (did you mean 'train.steps'?)" in document["error"]
    assert f"{bad}:1:23: train.lr: 0 is out of range" in document["error"]
    assert json.loads(run("nonsense", "--json").stdout)["exit_code"] == 2


def test_show_applies_overrides_and_shared_options():
    shown = json.loads(run("config", "show", "examples/tiny/recover.yaml", "-o", "train.steps=90", "-o", "train.lr=1e-3", "--seed", "5", "--dtype", "float64",
                           "--json").stdout)
    assert shown["train"]["steps"] == 90 and shown["train"]["lr"] == 1e-3 and shown["train"]["seed"] == 5
    assert shown["model"]["dtype"] == "float64"
    assert shown["train"]["betas"] == [0.9, 0.95]


def test_shown_yaml_reads_back_the_same(tmp_path):
    for name in ("recover", "train", "mcore_qad"):
        first = run("config", "show", f"examples/tiny/{name}.yaml")
        assert first.returncode == 0
        assert run("config", "show", write(tmp_path, first.stdout)).stdout == first.stdout


def test_a_foreign_file_tells_what_is_different():
    document = json.loads(run("config", "check", "examples/tiny/mcore_qad.yaml", "--json").stdout)
    assert document["dialect"] == "mcore_qad"
    assert any("mcore_qad" in note for note in document["notes"])
    # Notes are for people: standard error, once.
    result = run("doctor", "-c", "examples/tiny/mcore_qad.yaml")
    assert result.stderr.count("numerics mcore_qad") == 1 and "numerics mcore_qad" not in result.stdout


def accepts(schema, root, value):
    """The part of JSON schema that ours uses."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    if "if" in schema:
        branch = "then" if accepts(schema["if"], root, value) else "else"
        return accepts(schema[branch], root, value)
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "number": (int, float), "integer": int, "null": type(None)}
    if "type" in schema:
        wanted = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        fits = [kind for kind in wanted if isinstance(value, kinds[kind]) and not (isinstance(value, bool) and kind in ("number", "integer"))]
        if not fits:
            return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            return False
        if value <= schema.get("exclusiveMinimum", value - 1) or value >= schema.get("exclusiveMaximum", value + 1):
            return False
    if isinstance(value, list):
        return all(accepts(schema["items"], root, item) for item in value) if "items" in schema else True
    if isinstance(value, dict):
        if any(name not in value for name in schema.get("required", [])):
            return False
        properties = schema.get("properties", {})
        if schema.get("additionalProperties") is False and any(name not in properties for name in value):
            return False
        return all(accepts(properties[name], root, item) for name, item in value.items() if name in properties)
    return True


def test_the_json_schema_accepts_the_resolved_examples_and_refuses_typos():
    schema = json.loads(run("config", "schema").stdout)
    for name in ("recover", "train", "mcore_qad"):
        shown = json.loads(run("config", "show", f"examples/tiny/{name}.yaml", "--json").stdout)
        assert accepts(schema, schema, shown), name
        shown["train"]["stpes"] = 1
        assert not accepts(schema, schema, shown), name
    peer = {"model": {"name": "Qwen", "model_path": "m"}, "compression": {"name": "MCoreQAD", "MCoreQAD": {"format": "nvfp4", "optim": {"betas": [0.9, 0.95]}}}}
    assert accepts(schema, schema, peer)
    peer["compression"]["MCoreQAD"]["format"] = "nvfp5"
    assert not accepts(schema, schema, peer)


def test_the_examples_are_accepted_as_they_are_written():
    schema = json.loads(run("config", "schema").stdout)
    yaml = pytest.importorskip("yaml")
    # PyYAML knows YAML 1.1's floats only (1.0e-2); 1e-2 is a number in YAML 1.2 and to us.
    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))
    for path in sorted((ROOT / "examples" / "tiny").glob("*.yaml")):
        assert accepts(schema, schema, yaml.load(path.read_text(), loader)), path


def test_doctor_finds_the_text_worker_and_says_what_is_missing():
    report = json.loads(run("doctor", "--json").stdout)
    assert report["python"]["transformers"] and report["memory"]["total_bytes"] > 0 and report["ranks"] == 1
    broken = json.loads(run("doctor", "--json", env={"SCALEWRIGHT_PYTHON": "/no/such python'"}).stdout)
    assert "does not run" in broken["python"]["error"]
    assert any("SCALEWRIGHT_PYTHON" in problem for problem in broken["problems"])


def test_a_closed_standard_output_is_an_error_and_no_signal():
    result = subprocess.run(["bash", "-c", f"'{BINARY}' doctor --json > /dev/full"], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 6 and "standard output cannot be written" in result.stderr


def test_completions_know_commands_options_and_choices():
    script = run("completion", "bash").stdout

    def complete(words, position):
        probe = f"{script}\nCOMP_WORDS=(scalewright {words}); COMP_CWORD={position}; _scalewright; echo ${{COMPREPLY[@]}}"
        return subprocess.run(["bash", "-c", probe], capture_output=True, text=True, check=True).stdout.split()

    assert complete("doc", 1) == ["doctor"]
    assert complete("config ch", 2) == ["check"]
    assert complete("doctor --thr", 2) == ["--threads"]
    assert complete("doctor --device cu", 3) == ["cuda"]
    for shell in ("zsh", "fish"):
        text = run("completion", shell).stdout
        for name in commands():
            assert name in text, (shell, name)
        assert ("--threads" if shell == "zsh" else "-l threads") in text
