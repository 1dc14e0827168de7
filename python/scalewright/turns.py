"""Where the assistant speaks in a rendered conversation: character spans that the loss covers.

A span is what the model itself would write: it begins where the generation prompt ends and ends with the stop token. Whitespace that
a template puts after the stop token ("\n" after <|im_end|>) is not part of it. All functions work on text; tokens come later.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Callable

from scalewright.samples import LineError

Span = tuple[int, int]
# Stands for the content of a turn when the template is asked where it puts it: words that no data holds.
_MARK = "scalewright-turn-content-mark"


class StopTokens:
    """The special tokens of a tokenizer, and the end of a turn in terms of them."""

    def __init__(self, specials: list[str], eos: str | None):
        self._specials = sorted({token for token in specials if token.strip()}, key=len, reverse=True)
        self._eos = eos

    def _at_end(self, text: str, end: int, start: int) -> str | None:
        return next((s for s in self._specials if end - len(s) >= start and text.startswith(s, end - len(s))), None)

    def _at(self, text: str, begin: int) -> str | None:
        return next((s for s in self._specials if text.startswith(s, begin)), None)

    def cut(self, text: str, start: int, end: int) -> int:
        """The end of the turn [start, end): after the first group of special tokens of its tail, without what follows them.

        A tail without special tokens stays whole, since its whitespace may be all that ends the turn.
        """
        tail = end
        found = False
        while True:
            while tail > start and text[tail - 1].isspace():
                tail -= 1
            special = self._at_end(text, tail, start)
            if special is None:
                break
            found = True
            tail -= len(special)
        return self._group_end(text, tail, end) if found else end

    def after(self, text: str, content_end: int) -> int:
        """The end of a turn whose content ends at `content_end`: includes the special tokens that follow at once."""
        begin = content_end
        while begin < len(text) and text[begin].isspace():
            begin += 1
        return self._group_end(text, begin, len(text)) if self._at(text, begin) else content_end

    def with_eos(self, text: str, end: int, start: int) -> int:
        """Adds the end-of-sequence token when the turn lacks a special token at its end and that one follows."""
        if self._eos and text.startswith(self._eos, end) and self._at_end(text, end, start) is None:
            return end + len(self._eos)
        return end

    def _group_end(self, text: str, begin: int, end: int) -> int:
        """Past the whitespace and the special tokens without gap at `begin`; the end-of-sequence token ends the group."""
        position = begin
        while position < end and text[position].isspace():
            position += 1
        while (special := self._at(text, position)) is not None and position < end:
            position += len(special)
            if special == self._eos:
                break
        return position


def conversation_spans(
    render: Callable[[list[dict], bool], str], messages: list[dict], full: str, stops: StopTokens
) -> list[Span]:
    """Spans of the assistant turns of `messages` in `full` = render(messages, False). render(messages, generation_prompt).

    Raises LineError when the template gives no way to tell where a turn lies.
    """
    locator = _Locator(render, messages, full, stops)
    spans: list[Span] = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        start, end = locator.span(index)
        if spans and start < spans[-1][1]:
            raise LineError(f"the chat template mixes turn {index} with an earlier one; the assistant's words cannot be told apart")
        spans.append((start, end))
    return spans


def generation_spans(full: str, marked: list[Span], stops: StopTokens) -> list[Span]:
    """The spans that a template marks itself ({% generation %}), each with the stop token when that follows at once."""
    return [(start, stops.with_eos(full, stops.cut(full, start, end), start)) for start, end in marked if end > start]


class _Locator:
    """Finds one turn after another, by prefixes of the conversation first, by a mark in place of the content where these do not nest."""

    def __init__(self, render: Callable[[list[dict], bool], str], messages: list[dict], full: str, stops: StopTokens):
        self._render, self._messages, self._full, self._stops = render, messages, full, stops

    def span(self, index: int) -> Span:
        start = self._start_by_prefix(index)
        end = self._end_by_prefix(index, start)
        if start is not None and end is not None:
            return start, end
        content = self._content_by_mark(index)
        if content is None:
            raise LineError(f"the chat template does not show where turn {index} (assistant) begins and ends: earlier turns change as the conversation grows")
        if start is None:
            # One space before the content is the model's to write: tokenizers join it to the first word.
            start = content[0] - 1 if self._full[: content[0]].endswith(" ") else content[0]
        return start, self._stops.after(self._full, content[1]) if end is None or end <= start else end

    def _try_render(self, messages: list[dict], generation_prompt: bool) -> str | None:
        """None when the template refuses a part of a conversation (it may ask for a user turn, say)."""
        try:
            return self._render(messages, generation_prompt)
        except LineError:
            return None

    def _start_by_prefix(self, index: int) -> int | None:
        before = self._messages[:index]
        prompt = self._try_render(before, True) if before else None
        if prompt is None:
            return None
        if self._full.startswith(prompt):
            return len(prompt)
        # A generation prompt may add what a finished turn lacks ("<think>"): what both have in common belongs to the prompt.
        base = self._try_render(before, False)
        common = len(os.path.commonprefix([self._full, prompt]))
        content = self._content_by_mark(index)
        if base is None or not self._full.startswith(base) or common <= len(base) or content is None:
            return None
        return min(common, content[0])

    def _end_by_prefix(self, index: int, start: int | None) -> int | None:
        if start is None:
            return None
        last = index + 1 == len(self._messages)
        through = self._full if last else self._try_render(self._messages[: index + 1], False)
        if through is None or not self._full.startswith(through) or len(through) <= start:
            return None
        end = self._stops.cut(self._full, start, len(through))
        return self._stops.with_eos(self._full, end, start)

    def _content_by_mark(self, index: int) -> Span | None:
        if not isinstance(self._messages[index].get("content"), str):
            return None
        marked = [*self._messages]
        marked[index] = {**marked[index], "content": _MARK}
        text = self._try_render(marked, False)
        if text is None or len(pieces := re.split(re.escape(_MARK), text)) != 2:
            return None
        before, after = pieces
        nests = self._full.startswith(before) and self._full.endswith(after) and len(before) + len(after) <= len(self._full)
        return (len(before), len(self._full) - len(after)) if nests else None


def applied_message_spans(text: str, markers: "HyMarkers") -> list[Span]:
    """hy_v3: after each assistant marker up to and including the end of sequence; a tool response ends a span."""
    spans: list[Span] = []
    begin: int | None = None
    for match in markers.pattern.finditer(text):
        kind = match.lastgroup
        if begin is not None and kind in ("eos", "tool"):
            end = match.end() if kind == "eos" else match.start()
            if end > begin:
                spans.append((begin, end))
            begin = None
        elif kind == "assistant":
            if begin is not None and match.start() > begin:
                spans.append((begin, match.start()))
            begin = match.end()
    if begin is not None and len(text) > begin:
        spans.append((begin, len(text)))
    return spans


class HyMarkers:
    """hy_v3's markers, <|hy_Assistant:SUFFIX|> and the like; the suffix is that of the tokenizer's end of sequence (often none)."""

    _TOKEN = re.compile(r"<[|｜][^:|｜<>]+(?P<suffix>:[^|｜<>]+)?[|｜]>")
    _PLACEHOLDER = re.compile(r"<[|｜]hy_\w+:(?P<suffix>[^|｜<>]+)[|｜]>")

    def __init__(self, eos_token: str | None):
        match = self._TOKEN.fullmatch(eos_token or "")
        self._suffix = (match["suffix"] or "") if match else ""
        suffix = re.escape(self._suffix)
        kinds = [rf"(?P<assistant><[|｜]hy_Assistant{suffix}[|｜]>)", rf"(?P<tool><tool_responses?{suffix}>)"]
        if eos_token:
            kinds.append(rf"(?P<eos>{re.escape(eos_token)})")
        self.pattern = re.compile("|".join(kinds))

    def normalise(self, text: str) -> str:
        """Gives markers the tokenizer's suffix in place of the record's own one (named by its first marker)."""
        match = self._PLACEHOLDER.search(text)
        if match is None:
            return text
        return re.sub(rf"(</?[|｜]?\w+):{re.escape(match['suffix'])}([|｜]?>)", rf"\g<1>{self._suffix}\g<2>", text)
