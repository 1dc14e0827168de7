"""The text worker against transformers and against spans written by hand, on chat templates in the styles of the field."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples/tiny/fixture/model"
sys.path.insert(0, str(ROOT / "python"))

from transformers import AutoTokenizer  # noqa: E402

from scalewright import text_worker  # noqa: E402
from scalewright.text_worker import TextModel  # noqa: E402

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CHATML_TOOLS = (
    "{% if tools %}{{ '<|im_start|>system\\nTools:\\n' }}{% for t in tools %}{{ t.name + '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + (m.role if m.role != 'tool' else 'user') + '\\n' }}"
    "{% if m.role == 'tool' %}{{ '<tool_response>' + m.content + '</tool_response>' }}{% elif m.content %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function.name + '</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
# The system prompt stands in the last user turn, so a conversation's beginning changes as it grows.
MISTRAL_SYSTEM_LAST = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{{ bos_token }}{% for m in rest %}{% if m.role == 'user' %}{% set last = rest | selectattr('role', 'equalto', 'user') | list | last %}"
    "{% if system is defined and m == last %}{{ '[INST] ' + system + '\\n\\n' + m.content + '[/INST]' }}{% else %}{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}"
    "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"
)
# Reasoning of earlier turns is dropped; the last turn always has a reasoning block.
QWEN3 = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' and loop.last %}"
    "{% if '</think>' in m.content %}{{ m.content }}{% else %}{{ '<think>\\n\\n</think>\\n\\n' + m.content }}{% endif %}"
    "{% elif m.role == 'assistant' %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The generation prompt opens a reasoning block that finished turns do not show.
R1 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|User|>' + m.content }}{% elif m.role == 'assistant' %}"
    "{{ '<|Assistant|>' + m.content.split('</think>')[-1] + eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"
)
# An end-of-text token after a finished conversation, which is not what ends a turn.
PHI3 = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
# The stop token is written by the next user turn.
STOP_FIRST = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ ('' if loop.first else eos_token) + 'USER: ' + m.content + ' ' }}{% else %}"
    "{{ 'ASSISTANT: ' + m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
GENERATION = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>\\n' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Turns without any special token: the newline is all that ends them.
PLAIN_TURNS = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
HY = (
    "{{ '<|hy_begin_of_sentence:opensource|>' }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|hy_User:opensource|>' + m.content }}"
    "{% elif m.role == 'assistant' %}{{ '<|hy_Assistant:opensource|>' + m.content + eos_token }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|hy_Assistant:opensource|>' }}{% endif %}"
)

SPECIALS = {
    "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "mistral": ["<s>", "</s>"],
    "r1": ["<|bos|>", "<|User|>", "<|Assistant|>", "<|eos|>"],
    "phi3": ["<|user|>", "<|assistant|>", "<|end|>"],
    "gemma": ["<bos>", "<start_of_turn>", "<end_of_turn>"],
    "hy": [f"<|hy_{name}:opensource|>" for name in ("begin_of_sentence", "User", "Assistant", "eos")]
    + ["<tool_response:opensource>", "<tool_responses:opensource>"],
}

U, A, S = "user", "assistant", "system"


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


# name, template, special tokens, eos, messages, and the rendered text with what the model learns in «».
CASES = [
    ("chatml", CHATML, [], "<|im_end|>", turns((S, "be brief"), (U, "hi"), (A, "yo"), (U, "more"), (A, "so so")),
     "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n«yo<|im_end|>»\n"
     "<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n«so so<|im_end|>»\n"),
    ("chatml_ends_with_user", CHATML, [], "<|im_end|>", turns((U, "hi"), (A, "yo"), (U, "more")),
     "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n«yo<|im_end|>»\n<|im_start|>user\nmore<|im_end|>\n"),
    ("chatml_assistant_first", CHATML, [], "<|im_end|>", turns((A, "yo"), (U, "hi"), (A, "a")),
     "<|im_start|>assistant\n«yo<|im_end|>»\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n«a<|im_end|>»\n"),
    ("chatml_says_the_same_twice", CHATML, [], "<|im_end|>", turns((U, "yo"), (A, "yo"), (U, "yo"), (A, "yo")),
     "<|im_start|>user\nyo<|im_end|>\n<|im_start|>assistant\n«yo<|im_end|>»\n<|im_start|>user\nyo<|im_end|>\n<|im_start|>assistant\n«yo<|im_end|>»\n"),
    ("chatml_empty_answer", CHATML, [], "<|im_end|>", turns((U, "hi"), (A, "")),
     "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n«<|im_end|>»\n"),
    ("tools", CHATML_TOOLS, [], "<|im_end|>",
     [*turns((U, "hi")), {"role": A, "content": None, "tool_calls": [{"function": {"name": "look"}}]}, {"role": "tool", "content": "42"}, *turns((A, "it is 42"))],
     "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n«<tool_call>look</tool_call><|im_end|>»\n"
     "<|im_start|>user\n<tool_response>42</tool_response><|im_end|>\n<|im_start|>assistant\n«it is 42<|im_end|>»\n"),
    ("llama3", LLAMA3, SPECIALS["llama3"], "<|eot_id|>", turns((S, "be brief"), (U, " hi "), (A, " yo\n"), (U, "x"), (A, "y")),
     "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nbe brief<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\n«yo<|eot_id|>»<|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|>"
     "<|start_header_id|>assistant<|end_header_id|>\n\n«y<|eot_id|>»"),
    ("mistral", MISTRAL, SPECIALS["mistral"], "</s>", turns((U, "hi"), (A, "yo"), (U, "x"), (A, "y")),
     "<s>[INST] hi [/INST]« yo</s>»[INST] x [/INST]« y</s>»"),
    ("mistral_system_last", MISTRAL_SYSTEM_LAST, SPECIALS["mistral"], "</s>", turns((S, "brief"), (U, "hi"), (A, "yo"), (U, "x"), (A, "y")),
     "<s>[INST] hi[/INST]« yo</s>»[INST] brief\n\nx[/INST]« y</s>»"),
    ("qwen3", QWEN3, [], "<|im_end|>", turns((U, "hi"), (A, "<think>\nhm\n</think>\n\nyo"), (U, "x"), (A, "y")),
     "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n«yo<|im_end|>»\n<|im_start|>user\nx<|im_end|>\n"
     "<|im_start|>assistant\n«<think>\n\n</think>\n\ny<|im_end|>»\n"),
    ("r1", R1, SPECIALS["r1"], "<|eos|>", turns((U, "hi"), (A, "<b>yo"), (U, "x"), (A, "y")),
     "<|bos|><|User|>hi<|Assistant|>«<b>yo<|eos|>»<|User|>x<|Assistant|>«y<|eos|>»"),
    ("phi3", PHI3, SPECIALS["phi3"], "<|endoftext|>", turns((U, "hi"), (A, "yo"), (U, "x"), (A, "y")),
     "<|user|>\nhi<|end|>\n<|assistant|>\n«yo<|end|>»\n<|user|>\nx<|end|>\n<|assistant|>\n«y<|end|>»\n<|endoftext|>"),
    ("gemma", GEMMA, SPECIALS["gemma"], "<end_of_turn>", turns((U, "hi"), (A, "yo"), (U, "x"), (A, "y")),
     "<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n«yo<end_of_turn>»\n<start_of_turn>user\nx<end_of_turn>\n"
     "<start_of_turn>model\n«y<end_of_turn>»\n"),
    ("stop_first", STOP_FIRST, SPECIALS["mistral"], "</s>", turns((U, "hi"), (A, "yo"), (U, "x"), (A, "y")),
     "USER: hi ASSISTANT:« yo</s>»USER: x ASSISTANT:« y»"),
    ("generation", GENERATION, [], "<|im_end|>", turns((U, "hi"), (A, "yo"), (U, "x"), (A, "y")),
     "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n«yo<|im_end|>»\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n«y<|im_end|>»\n"),
    ("plain_turns", PLAIN_TURNS, [], "<|im_end|>", turns((U, "hi"), (A, "yo"), (U, "x"), (A, "y")),
     "user: hi\nassistant:« yo\n»user: x\nassistant:« y\n»"),
    ("hy_v3", HY, SPECIALS["hy"], "<|hy_eos:opensource|>", turns((U, "hi"), (A, "yo"), (U, "x"), (A, "y")),
     "<|hy_begin_of_sentence:opensource|><|hy_User:opensource|>hi<|hy_Assistant:opensource|>«yo<|hy_eos:opensource|>»"
     "<|hy_User:opensource|>x<|hy_Assistant:opensource|>«y<|hy_eos:opensource|>»"),
]


def make_folder(path, template, specials, eos):
    """The bundled tokenizer with other special tokens and another template."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": [*specials]})
    tokenizer.eos_token = eos
    tokenizer.bos_token = specials[0] if specials else None
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    return path


def encode(model, record, **options):
    line = record if isinstance(record, str) else json.dumps(record)
    return model.encode([line], options.get("format", "auto"), options.get("loss_on", "assistant"), options.get("seq_len", 10000))[0]


def shown(tokenizer, sample):
    """The text of a sample with its target tokens in «»."""
    text, last = "", 0
    for begin, end in sample["spans"]:
        text += tokenizer.decode(sample["ids"][last:begin]) + "«" + tokenizer.decode(sample["ids"][begin:end]) + "»"
        last = end
    return text + tokenizer.decode(sample["ids"][last:])


@pytest.mark.parametrize("name, template, specials, eos, messages, want", CASES, ids=[case[0] for case in CASES])
def test_spans_and_ids(tmp_path, name, template, specials, eos, messages, want):
    model = TextModel(str(make_folder(tmp_path, template, specials, eos)))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    sample = encode(model, {"messages": messages})
    assert "error" not in sample, sample
    assert shown(tokenizer, sample) == want
    assert sample["ids"] == tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
    everything = encode(model, {"messages": messages}, loss_on="all")
    assert everything["ids"] == sample["ids"] and everything["spans"] == [(1, len(sample["ids"]))]
    prompt = [m for m in messages[:1]] if messages[0]["role"] == U else messages[:2]
    assert model.prompts([prompt])[0] == tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]


@pytest.fixture(scope="module")
def chatml():
    return TextModel(str(MODEL)), AutoTokenizer.from_pretrained(MODEL)


def test_both_shapes_are_the_same_sample(chatml):
    model, _ = chatml
    first = encode(model, {"messages": turns((S, "s"), (U, "hi"), (A, "yo"), ("tool", "t"))})
    second = encode(model, {"conversations": [{"from": f, "value": v} for f, v in [("system", "s"), ("human", "hi"), ("gpt", "yo"), ("observation", "t")]]})
    assert first == second and first["spans"]


def test_content_parts_are_joined(chatml):
    model, _ = chatml
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": " you"}]
    assert encode(model, {"messages": [{"role": U, "content": parts}, *turns((A, "yo"))]}) == encode(model, {"messages": turns((U, "hi you"), (A, "yo"))})


def test_the_bundled_data_agrees_with_transformers(chatml):
    model, tokenizer = chatml
    lines = (MODEL.parent / "data/train.jsonl").read_text().splitlines()[:200]
    for line, sample in zip(lines, model.encode(lines, "auto", "assistant", 128)):
        messages = json.loads(line)["messages"]
        assert sample["ids"] == tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
        [(begin, end)] = sample["spans"]
        assert tokenizer.decode(sample["ids"][begin:end]) == messages[-1]["content"] + "<|im_end|>"
        assert tokenizer.decode(sample["ids"][end:]) == "\n"


def test_non_ascii_text_and_byte_tokens(chatml):
    model, tokenizer = chatml
    sample = encode(model, {"messages": turns((U, "größe 猫"), (A, "éß 🐈‍⬛ 猫"))})
    [(begin, end)] = sample["spans"]
    assert tokenizer.decode(sample["ids"][begin:end]) == "éß 🐈‍⬛ 猫<|im_end|>"


def test_truncation_cuts_spans(chatml):
    model, _ = chatml
    whole = encode(model, {"messages": turns((U, "hi"), (A, "one two three four"))})
    [(begin, _)] = whole["spans"]
    assert not whole["truncated"]
    cut = encode(model, {"messages": turns((U, "hi"), (A, "one two three four"))}, seq_len=begin + 2)
    assert cut == {"ids": whole["ids"][: begin + 2], "spans": [(begin, begin + 2)], "truncated": True}
    assert encode(model, {"messages": turns((U, "hi"), (A, "yo"))}, seq_len=begin - 2)["spans"] == []


def test_plain_text(chatml):
    model, tokenizer = chatml
    want = tokenizer("hello there")["input_ids"]
    for line, format in [('{"text": "hello there"}', "auto"), ('{"text": "hello there"}', "text"), ("hello there", "text")]:
        sample = encode(model, line, format=format)
        assert sample["ids"] == want and sample["spans"] == [(1, len(want))]
    assert tokenizer.decode(encode(model, "{not json", format="text")["ids"]) == "{not json"


HY_MESSAGE = (
    "<|hy_begin_of_sentence:6124c78e|><|hy_User:6124c78e|>is :6124c78e a word<|hy_Assistant:6124c78e|>first<|hy_eos:6124c78e|>"
    "<tool_responses:6124c78e><tool_response:6124c78e>42<|hy_Assistant:6124c78e|>then<tool_response:6124c78e>no<|hy_Assistant:6124c78e|>last"
)


def test_hy_v3_applied_message(tmp_path):
    model = TextModel(str(make_folder(tmp_path, HY, SPECIALS["hy"], "<|hy_eos:opensource|>")))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    sample = encode(model, {"applied_message": HY_MESSAGE})
    want = (
        "<|hy_begin_of_sentence:O|><|hy_User:O|>is :6124c78e a word<|hy_Assistant:O|>«first<|hy_eos:O|>»"
        "<tool_responses:O><tool_response:O>42<|hy_Assistant:O|>«then»<tool_response:O>no<|hy_Assistant:O|>«last»"
    )
    assert shown(tokenizer, sample).replace(":opensource", ":O") == want
    assert sample["ids"].count(tokenizer.convert_tokens_to_ids("<|hy_Assistant:opensource|>")) == 3


def test_hy_v3_without_suffix(tmp_path):
    specials = ["<|hy_begin_of_sentence|>", "<|hy_Assistant|>", "<|hy_eos|>"]
    model = TextModel(str(make_folder(tmp_path, HY, specials, "<|hy_eos|>")))
    sample = encode(model, {"applied_message": "<|hy_begin_of_sentence:ab|>q<|hy_Assistant:ab|>a<|hy_eos:ab|>"})
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert shown(tokenizer, sample) == "<|hy_begin_of_sentence|>q<|hy_Assistant|>«a<|hy_eos|>»"


BAD_LINES = [
    ("nope", "not JSON"),
    ("[1]", "found a list"),
    ('{"prompt": "x"}', "expected a key messages"),
    ('{"messages": "hi"}', "messages must be a list"),
    ('{"messages": []}', "messages is empty"),
    ('{"messages": [1]}', "messages[0] must be an object"),
    ('{"messages": [{"role": "user"}]}', "messages[0]: no content"),
    ('{"messages": [{"role": "wizard", "content": "x"}]}', "role is 'wizard'"),
    ('{"messages": [{"content": "x"}]}', "role is missing"),
    ('{"messages": [{"role": "user", "content": 5}]}', "must be text, found a number"),
    ('{"messages": [{"role": "user", "content": [{"type": "image"}]}]}', "must be text"),
    ('{"conversations": [{"from": "human"}]}', "no value"),
    ('{"messages": [{"role": "user", "content": "x"}], "tools": "{"}', "tools: not JSON"),
    ('{"applied_message": 5}', "applied_message must be a string"),
    ('{"text": ""}', "text is empty"),
    ('{"text": "\\ud800"}', "not valid Unicode"),
    ('{"a":' * 100000, "not JSON"),
]


@pytest.mark.parametrize("line, why", BAD_LINES, ids=[why for _, why in BAD_LINES])
def test_bad_lines_say_why(chatml, line, why):
    model, _ = chatml
    good = '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}'
    answers = model.encode([good, line, good], "auto", "assistant", 64)
    if why == "not JSON" and line.startswith('{"a"'):
        assert answers[1]["error"] in ("JSON is nested too deeply",) or why in answers[1]["error"]
    else:
        assert why in answers[1].get("error", "no error")
    assert answers[0] == answers[2] and "ids" in answers[0]


def test_a_template_that_hides_its_turns_is_an_error(tmp_path):
    shuffled = "{% for m in messages | reverse %}{{ m.role + ':' + m.content | upper }}{% endfor %}"
    model = TextModel(str(make_folder(tmp_path, shuffled, [], "<|im_end|>")))
    assert "turn 1 (assistant)" in encode(model, {"messages": turns((U, "hi"), (A, "yo"))})["error"]


def test_templates_cannot_run_code_or_run_for_ever(tmp_path, monkeypatch):
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    model = TextModel(str(make_folder(tmp_path / "escape", escape, [], "<|im_end|>")))
    assert "template fails" in encode(model, {"messages": turns((U, "hi"), (A, "yo"))})["error"]
    huge = "{{ 'x' * 70000000 }}"
    model = TextModel(str(make_folder(tmp_path / "huge", huge, [], "<|im_end|>")))
    assert "more than 64 MB" in encode(model, {"messages": turns((U, "hi"), (A, "yo"))})["error"]
    monkeypatch.setattr(text_worker, "TEMPLATE_SECONDS", 0.2)
    endless = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
    model = TextModel(str(make_folder(tmp_path / "endless", endless, [], "<|im_end|>")))
    assert "ran longer" in encode(model, {"messages": turns((U, "hi"), (A, "yo"))})["error"]


def test_no_template(tmp_path):
    model = TextModel(str(make_folder(tmp_path, None, [], "<|im_end|>")))
    assert "no chat template" in encode(model, {"messages": turns((U, "hi"), (A, "yo"))})["error"]
    assert encode(model, {"text": "hi there"})["ids"]


def test_remote_code_is_not_run(tmp_path):
    shutil.copytree(MODEL, tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((tmp_path / "m/tokenizer_config.json").read_text())
    config |= {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "mine.Mine"]}}
    os.chmod(tmp_path / "m", 0o755)
    os.chmod(tmp_path / "m/tokenizer_config.json", 0o644)
    (tmp_path / "m/tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "m/mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Mine: pass\n")
    try:
        TextModel(str(tmp_path / "m"))
    except Exception:
        pass  # refused; falling back to tokenizer.json is as good
    assert not (tmp_path / "ran").exists()


# The worker as a process, and the prepare command.


def test_protocol():
    requests = [
        {"op": "encode", "lines": ['{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}', "nope"],
         "format": "auto", "loss_on": "assistant", "seq_len": 64},
        {"op": "dance"},
        {"op": "prompts", "prompts": [[{"role": "wizard", "content": "x"}]]},
        {"op": "text", "texts": ["yo", ""]},
        {"op": "decode", "ids": [[1, 87, 2]]},
    ]
    run = subprocess.run(
        [sys.executable, "-m", "scalewright.text_worker", str(MODEL)],
        input="".join(json.dumps(r) + "\n" for r in requests), capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, timeout=60,
    )
    ready, encoded, unknown, prompts, text, decoded = map(json.loads, run.stdout.splitlines())
    assert ready["ready"]["eos_token_id"] == 2 and run.returncode == 0
    assert len(encoded["samples"]) == 2 and "not JSON" in encoded["samples"][1]["error"]
    assert "dance" in unknown["error"]
    assert prompts["error"].startswith("prompt 0: ")
    assert text["ids"][1] == []
    assert decoded["texts"] == ["u"]


def test_start_up_imports_no_framework():
    code = f"import sys; from scalewright.text_worker import TextModel; TextModel({str(MODEL)!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, timeout=60).returncode == 0


needs_binary = pytest.mark.skipif("SCALEWRIGHT_BINARY" not in os.environ, reason="run by ctest, which names the program")


def prepare(*arguments):
    return subprocess.run([os.environ["SCALEWRIGHT_BINARY"], "prepare", *map(str, arguments)], capture_output=True, text=True, timeout=120)


@needs_binary
def test_prepare_command(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text((MODEL.parent / "data/calib.jsonl").read_text() + "broken\n")
    run = prepare("--model", MODEL, "--data", data, "--out", tmp_path / "out", "--json")
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["lines"] == 513 and report["rows"] == 512 and report["bad"] == 1
    assert report["bad_examples"][0].startswith(f"{data}:513: not JSON")
    assert f"{data}:513" in run.stderr
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["content_hash"] == report["content_hash"] and manifest["rows"] == 512
    again = prepare("--model", MODEL, "--data", data, "--out", tmp_path / "out")
    assert again.returncode == 0 and "513" in again.stdout and "already" in again.stderr


@needs_binary
@pytest.mark.parametrize("name, contents, code, words", [
    ("empty.jsonl", "", 3, "no data"),
    ("bad.jsonl", "nope\nnope\n", 3, "bad.jsonl:1: not JSON"),
    ("users.jsonl", '{"messages": [{"role": "user", "content": "x"}]}\n', 3, "without a token to learn"),
    (None, None, 3, "no such file"),
])
def test_prepare_refuses(tmp_path, name, contents, code, words):
    data = tmp_path / (name or "missing.jsonl")
    if name:
        data.write_text(contents)
    run = prepare("--model", MODEL, "--data", data, "--out", tmp_path / "out")
    assert run.returncode == code and words in run.stderr and str(data) in run.stderr
    assert not (tmp_path / "out").exists() and len(list(tmp_path.iterdir())) == bool(name)


@needs_binary
def test_prepare_without_tokenizer(tmp_path):
    (tmp_path / "model").mkdir()
    shutil.copy(MODEL / "config.json", tmp_path / "model")
    run = prepare("--model", tmp_path / "model", "--data", MODEL.parent / "data/calib.jsonl", "--out", tmp_path / "out")
    assert run.returncode == 3 and f"no tokenizer in {tmp_path / 'model'} (expected tokenizer.json" in run.stderr
