"""The text worker: the model's own tokenizer and chat template behind a line protocol.

    python -m scalewright.text_worker MODEL_FOLDER

One JSON object a line on standard input, one answer a line on standard output. The first line out is {"ready": {...}} or {"error": why}.
Requests, and what their answers hold:
    {"op": "encode", "lines": [...], "format": F, "loss_on": L, "seq_len": N}
        {"samples": [{"ids": [...], "spans": [[first, past the last], ...], "truncated": bool} or {"error": why}, ...]}
        spans: the tokens that count as targets
    {"op": "prompts", "prompts": [text, or messages, ...]}   {"ids": [[...], ...]}
    {"op": "text", "texts": [...]}                           {"ids": [[...], ...]}   without special tokens
    {"op": "decode", "ids": [[...], ...]}                    {"texts": [...]}        special tokens skipped
A request that fails as a whole is answered by {"error": why}. Nothing from the model folder is executed: no remote code, and templates
run in the sandbox of transformers.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from contextlib import contextmanager

from scalewright.samples import Conversation, LineError, Plain, Rendered, Sample, parse_line
from scalewright.turns import HyMarkers, Span, StopTokens, applied_message_spans, conversation_spans, generation_spans

MAX_RENDERED_CHARS = 64 << 20
TEMPLATE_SECONDS = 5.0
# A template that runs too long this often is not going to do better.
MAX_TIMEOUTS = 3
MAX_MEMORY_BYTES = 16 << 30


class TemplateTimeout(BaseException):
    """Not an Exception, so that nothing in between catches it: a chat template ran longer than TEMPLATE_SECONDS."""


class RequestError(Exception):
    """Why a request fails as a whole."""


def import_tokenizers():
    """AutoTokenizer and the template renderer, without the frameworks that transformers would import beside them (seconds of start-up)."""
    import importlib.util

    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    hidden = {"torch", "torchvision", "torchaudio", "accelerate", "PIL", "cv2", "scipy", "sklearn", "pandas", "librosa"}
    find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in hidden else find_spec(name, package)
    try:
        from transformers import AutoTokenizer
        from transformers.utils.chat_template_utils import render_jinja_template
    finally:
        importlib.util.find_spec = find_spec
    return AutoTokenizer, render_jinja_template


class TextModel:
    """Tokenizer and template of one folder."""

    def __init__(self, folder: str):
        auto_tokenizer, self._render_jinja = import_tokenizers()
        self._tokenizer = auto_tokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not getattr(self._tokenizer, "is_fast", False):
            raise RequestError(f"the tokenizer ({type(self._tokenizer).__name__}) has no tokenizer.json and cannot be converted to one")
        self._backend = self._tokenizer.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        specials = {str(t) for t in self._tokenizer.all_special_tokens}
        specials |= {t.content for t in self._tokenizer.added_tokens_decoder.values() if t.special}
        self._stops = StopTokens(sorted(specials), self._tokenizer.eos_token)
        self._hy = HyMarkers(self._tokenizer.eos_token)
        self._special_tokens_map = dict(self._tokenizer.special_tokens_map)
        self._timeouts = 0
        signal.signal(signal.SIGALRM, _on_alarm)

    def info(self) -> dict:
        tokenizer = self._tokenizer
        return {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "vocabulary": len(tokenizer)}

    # Requests.

    def encode(self, lines: list[str], format: str, loss_on: str, seq_len: int) -> list[dict]:
        answers: list[dict] = [{} for _ in lines]
        rendered: list[tuple[int, str, list[Span] | None, bool]] = []
        for index, line in enumerate(lines):
            try:
                sample = parse_line(line, format)
                with self._limited_time():
                    text, spans, add_special = self._render_sample(sample, loss_on)
                _check_unicode(text)
                rendered.append((index, text, spans, add_special))
            except LineError as error:
                answers[index] = {"error": str(error)}
        for add_special in (False, True):
            group = [item for item in rendered if item[3] == add_special]
            encodings = self._backend.encode_batch([item[1] for item in group], add_special_tokens=add_special)
            for (index, _, spans, _), encoding in zip(group, encodings):
                answers[index] = _sample_answer(encoding, spans, seq_len)
        return answers

    def prompts(self, prompts: list) -> list[list[int]]:
        return [self._prompt_ids(prompt, index) for index, prompt in enumerate(prompts)]

    def text(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._backend.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: list[list[int]]) -> list[str]:
        return [self._tokenizer.decode(row, skip_special_tokens=True, clean_up_tokenization_spaces=False) for row in ids]

    # Samples.

    def _render_sample(self, sample: Sample, loss_on: str) -> tuple[str, list[Span] | None, bool]:
        """Text, its target spans (None: everything), and whether the tokenizer adds its special tokens."""
        if isinstance(sample, Plain):
            return sample.text, None, True
        if isinstance(sample, Rendered):
            text = self._hy.normalise(sample.text)
            return text, applied_message_spans(text, self._hy) if loss_on == "assistant" else None, False
        full, marked = self._render(sample.messages, False, sample.tools, track=True)
        if loss_on == "all":
            return full, None, False
        if marked is not None:
            return full, generation_spans(full, marked, self._stops), False
        render = lambda messages, generation_prompt: self._render(messages, generation_prompt, sample.tools)[0]
        return full, conversation_spans(render, sample.messages, full, self._stops), False

    def _render(self, messages: list[dict], generation_prompt: bool, tools: list | None, track: bool = False) -> tuple[str, list[Span] | None]:
        """The template's text, and the character spans of its {% generation %} blocks (None when it has none)."""
        if not self._tokenizer.chat_template:
            raise LineError("the model has no chat template, so turns cannot be rendered (chat_template.jinja or tokenizer_config.json)")
        template = self._tokenizer.get_chat_template(None, tools)
        track = track and _marks_generation(template)
        try:
            texts, spans = self._render_jinja(
                conversations=[messages],
                tools=tools,
                chat_template=template,
                return_assistant_tokens_mask=track,
                add_generation_prompt=generation_prompt,
                **self._special_tokens_map,
            )
        except TemplateTimeout:
            raise
        except Exception as error:  # whatever a template raises says something about the line, or about the template
            raise LineError(f"the chat template fails: {_one_line(error)}") from None
        if len(texts[0]) > MAX_RENDERED_CHARS:
            raise LineError(f"renders to more than {MAX_RENDERED_CHARS >> 20} MB")
        return texts[0], spans[0] if track else None

    def _prompt_ids(self, prompt: object, index: int) -> list[int]:
        if isinstance(prompt, str):
            return self._backend.encode(prompt, add_special_tokens=True).ids
        record = prompt if isinstance(prompt, dict) else {"messages": prompt}
        try:
            sample = parse_line(json.dumps(record), "sharegpt")
            assert isinstance(sample, Conversation)
            with self._limited_time():
                text = self._render(sample.messages, True, sample.tools)[0]
        except LineError as error:
            raise RequestError(f"prompt {index}: {error}") from None
        return self._backend.encode(text, add_special_tokens=False).ids

    @contextmanager
    def _limited_time(self):
        """For one sample: LineError when its template runs too long, RequestError when that keeps happening."""
        try:
            signal.setitimer(signal.ITIMER_REAL, TEMPLATE_SECONDS)
            yield
        except TemplateTimeout:
            self._timeouts += 1
            if self._timeouts >= MAX_TIMEOUTS:
                raise RequestError(f"the chat template ran longer than {TEMPLATE_SECONDS:g} s on {MAX_TIMEOUTS} samples") from None
            raise LineError(f"the chat template ran longer than {TEMPLATE_SECONDS:g} s") from None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _on_alarm(signum, frame):
    raise TemplateTimeout


def _marks_generation(template: str) -> bool:
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


def _sample_answer(encoding, spans: list[Span] | None, seq_len: int) -> dict:
    ids = encoding.ids
    length = min(len(ids), seq_len)
    if length == 0:
        return {"error": "no tokens"}
    tokens = [(1, length)] if spans is None else _token_spans(encoding.offsets, spans, length)
    return {"ids": ids[:length], "spans": [span for span in tokens if span[1] > span[0]], "truncated": len(ids) > seq_len}


def _token_spans(offsets: list[tuple[int, int]], spans: list[Span], length: int) -> list[Span]:
    """Tokens that overlap each character span, of the first `length` tokens; both are in order, so one pass is enough."""
    result: list[Span] = []
    token = 0
    for start, end in spans:
        while token < length and offsets[token][1] <= start:
            token += 1
        first = token
        while token < length and offsets[token][0] < end:
            token += 1
        if token > first:
            result.append((first, token))
    return result


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise LineError(f"not valid Unicode: {error.reason} at character {error.start}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(f"{error}".split())[:500] or type(error).__name__


def answer(model: TextModel, request: dict) -> dict:
    op = request.get("op")
    if op == "encode":
        return {"samples": model.encode(request["lines"], request["format"], request["loss_on"], request["seq_len"])}
    if op == "prompts":
        return {"ids": model.prompts(request["prompts"])}
    if op == "text":
        return {"ids": model.text(request["texts"])}
    if op == "decode":
        return {"texts": model.decode(request["ids"])}
    raise RequestError(f"unknown operation {op!r}")


def serve(folder: str, requests, answers) -> int:
    def send(document: dict) -> None:
        answers.write(json.dumps(document, separators=(",", ":")).encode() + b"\n")
        answers.flush()

    try:
        model = TextModel(folder)
    except Exception as error:
        send({"error": f"the tokenizer cannot be loaded: {_one_line(error)}"})
        return 3
    send({"ready": model.info()})
    for line in requests:
        try:
            send(answer(model, json.loads(line)))
        except RequestError as error:
            send({"error": str(error)})
        except Exception as error:
            send({"error": f"{type(error).__name__}: {_one_line(error)}"})
    return 0


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m scalewright.text_worker MODEL_FOLDER", file=sys.stderr)
        return 2
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, hard))
    # The protocol keeps standard output for itself; whatever a library prints goes to standard error.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return serve(sys.argv[1], sys.stdin.buffer, answers)


if __name__ == "__main__":
    sys.exit(main())
