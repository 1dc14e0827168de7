"""eval, generate and compare as whole programs, against transformers and against numbers worked out by hand."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("SCALEWRIGHT_BINARY", str(ROOT / "build" / "scalewright"))
FIXTURE = ROOT / "examples" / "tiny" / "fixture"
MODEL = FIXTURE / "model"
TASKS = FIXTURE / "data" / "eval"
LIMIT = 20


def run(*arguments, code=0):
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"exit {done.returncode}: {done.stderr}"
    return done


def run_json(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code).stdout)


def questions():
    return {f.stem: [json.loads(line) for line in f.read_text().splitlines()[:LIMIT]] for f in sorted(TASKS.glob("*.jsonl"))}


@pytest.fixture(scope="module")
def bf16(tmp_path_factory):
    out = tmp_path_factory.mktemp("eval") / "bf16.json"
    scores = run_json("eval", "--model", MODEL, "--tasks", TASKS, "--limit", LIMIT, "--dtype", "float32", "--out", out)
    return scores, out


@pytest.fixture(scope="module")
def expected():
    """Per task whether transformers' greedy answer is right, and the log-likelihood of all right answers."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
    items, log_likelihood, tokens = {}, 0.0, 0
    for task, lines in questions().items():
        rows = []
        for line in lines:
            text = tokenizer.apply_chat_template(line["prompt"], tokenize=False, add_generation_prompt=True)
            prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
            answer = tokenizer(line["answer"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
            rows.append((prompt, answer))
        width = max(len(p) + len(a) for p, a in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        for i, (p, a) in enumerate(rows):
            ids[i, : len(p) + len(a)] = torch.tensor(p + a)
        with torch.no_grad():
            log_p = model(ids).logits.double().log_softmax(-1)   # causal: padding behind a row does not reach it
        items[task] = []
        for i, (p, a) in enumerate(rows):
            at = log_p[i, len(p) - 1 : len(p) + len(a) - 1]
            # Greedy generation gives the answer exactly when every teacher-forced argmax does.
            items[task].append(int(at.argmax(-1).tolist() == a))
            log_likelihood += at[range(len(a)), a].sum().item()
            tokens += len(a)
    return {"items": items, "log_likelihood": log_likelihood, "tokens": tokens, "model": model, "tokenizer": tokenizer}


def test_bf16_scores_are_transformers(bf16, expected):
    scores, out = bf16
    assert list(scores["tasks"]) == list(expected["items"])
    for task, items in expected["items"].items():
        assert scores["tasks"][task]["items"] == items, task
        assert scores["tasks"][task]["n"] == LIMIT
        assert scores["tasks"][task]["correct"] == sum(items)
        assert scores["tasks"][task]["accuracy"] == pytest.approx(sum(items) / LIMIT)
    mean = sum(sum(i) / LIMIT for i in expected["items"].values()) / len(expected["items"])
    assert scores["average"] == pytest.approx(mean)
    assert scores["divergence"] == {"tokens": expected["tokens"], "fkl": {"mean": 0, "stderr": 0}, "top1_agreement": 1}
    # float32 against float32: sums in another order
    assert scores["perplexity"] == pytest.approx(math.exp(-expected["log_likelihood"] / expected["tokens"]), rel=1e-5)
    assert json.loads(out.read_text()) == scores


def test_batch_size_does_not_change_the_answers(bf16):
    scores = run_json("eval", "--model", MODEL, "--tasks", TASKS / "sort.jsonl", "--limit", LIMIT, "--dtype", "float32", "--batch", 3)
    assert scores["tasks"]["sort"]["items"] == bf16[0]["tasks"]["sort"]["items"]


def test_generate_is_transformers_greedy(expected):
    prompts = ["What is 43 + 7?", "Reverse: h s f r", "Sort: 8 2 5 0"]
    answers = run_json("generate", "--model", MODEL, "--dtype", "float32", "--format", "w8a8", *[x for p in prompts for x in ("--prompt", p)])["answers"]
    tokenizer, model = expected["tokenizer"], expected["model"]
    for prompt, answer in zip(prompts, answers):
        text = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        out = model.generate(ids, max_new_tokens=64, do_sample=False)[0, ids.shape[1] :]
        assert answer["bf16"]["text"] == tokenizer.decode(out, skip_special_tokens=True)
        assert answer["bf16"]["stopped"]
        assert set(answer) == {"prompt", "bf16", "w8a8"}


def test_quantized_student_diverges_a_little(bf16, tmp_path):
    out, outputs = tmp_path / "nvfp4.json", tmp_path / "answers.jsonl"
    scores = run_json("eval", "--model", MODEL, "--format", "nvfp4", "--calib", FIXTURE / "data" / "calib.jsonl", "--tasks", TASKS, "--limit", LIMIT,
                      "--out", out, "--outputs", outputs)
    assert scores["quantization"] == "nvfp4"
    assert scores["divergence"]["tokens"] == bf16[0]["divergence"]["tokens"]
    # The whole set has 0.05 a token; 160 questions scatter about it.
    assert 0.01 < scores["divergence"]["fkl"]["mean"] < 0.15
    assert 0 < scores["divergence"]["fkl"]["stderr"] < scores["divergence"]["fkl"]["mean"]
    assert 0.9 < scores["divergence"]["top1_agreement"] < 1
    assert scores["perplexity"] > bf16[0]["perplexity"]
    lines = [json.loads(line) for line in outputs.read_text().splitlines()]
    assert [line["correct"] for line in lines if line["task"] == "add"] == [bool(x) for x in scores["tasks"]["add"]["items"]]
    verdict = run_json("compare", bf16[1], out)
    change = verdict["candidates"][0]["average"]
    assert change["difference"] == pytest.approx(scores["average"] - bf16[0]["average"])


def test_compare_by_hand(tmp_path):
    def write(name, items):
        tasks = {"t": {"n": len(items), "correct": sum(items), "accuracy": sum(items) / len(items), "stderr": 0, "items": items}}
        (tmp_path / name).write_text(json.dumps({"model": "m", "quantization": "none", "tasks": tasks, "average": 0}))
        return tmp_path / name

    a, b, c = write("a.json", [1, 1, 1, 1, 1, 1, 1, 0]), write("b.json", [0, 0, 0, 0, 0, 1, 1, 1]), write("c.json", [1, 1, 1, 0, 0, 1, 1, 1])
    out = tmp_path / "verdict.json"
    verdict = run_json("compare", a, b, c, "--out", out, "--max-drop", 0.2, code=1)
    assert json.loads(out.read_text()) == verdict
    task = verdict["candidates"][0]["tasks"]["t"]
    # d = -1 five times, 0 twice, +1 once: mean -1/2, sum of squares about it 5/4 + 2/4 + 9/4 = 4, SE sqrt(4/7/8)
    assert task["difference"] == pytest.approx(-0.5)
    assert task["stderr"] == pytest.approx(math.sqrt(4 / 7 / 8))
    assert task["verdict"] == "within noise"          # 0.5 against 2 * 0.267
    assert task["mcnemar_p"] == pytest.approx(2 * (1 + 6) / 64)
    # 7/8 to 3/8, back to 6/8: three quarters
    assert verdict["candidates"][1]["recovered"] == pytest.approx(0.75)
    assert not verdict["passed"] and len(verdict["failed"]) == 2 and "b.json" in verdict["failed"][0]
    run("compare", a, c, "--max-drop", 0.125)
    assert "verdict" in run("compare", a, b).stdout


def test_mistakes_are_named(tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x", "answer": "y"}\n{"prompt": "x"}\n')
    assert "bad.jsonl:2" in run("eval", "--model", MODEL, "--tasks", bad, code=3).stderr
    assert "--tasks" in run("eval", "--model", MODEL, code=2).stderr
    assert "nvfp4" in run("eval", "--model", MODEL, "--tasks", TASKS, "--format", "nvfp5", code=2).stderr
    assert "one of them" in run("eval", "--model", MODEL, "--tasks", TASKS, "--format", "fp8", "--scales", MODEL, code=2).stderr
    assert "at least two" in run("compare", bad, code=2).stderr
    assert "bad.jsonl" in run("compare", bad, bad, code=3).stderr


def test_without_a_tokenizer_only_ids(tmp_path):
    model = ROOT / "tests" / "data" / "reference" / "qwen3_moe"
    text, ids = tmp_path / "text.jsonl", tmp_path / "ids.jsonl"
    text.write_text('{"prompt": "x", "choices": ["a", "b"], "answer": 0}\n')
    ids.write_text('{"prompt": [1, 2, 3], "choices": [[4], [5, 6]], "answer": 0}\n{"prompt": [7, 8], "choices": [[4], [5]], "answer": 1}\n')
    assert "no tokenizer" in run("eval", "--model", model, "--tasks", text, code=3).stderr
    scores = run_json("eval", "--model", model, "--tasks", ids, "--format", "nvfp4")
    assert scores["tasks"]["ids"]["n"] == 2 and scores["divergence"]["tokens"] == 2


def test_dry_run_computes_and_writes_nothing(tmp_path):
    out = tmp_path / "scores.json"
    done = run("eval", "--model", MODEL, "--tasks", TASKS, "--limit", 2, "--out", out, "--dry-run")
    assert "would evaluate" in done.stderr and not out.exists()
