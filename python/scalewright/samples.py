"""Lines of data files to samples: which shape a line has, and what is in it.

A sample is one of
    Conversation(messages, tools)   ShareGPT in both shapes, to be rendered by the chat template
    Rendered(text)                  hy_v3's `applied_message`, rendered already
    Plain(text)                     text without turns
LineError says in one sentence why a line is none of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

MAX_LINE_BYTES = 16 << 20

ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}


class LineError(ValueError):
    """Why a line cannot be used."""


@dataclass
class Conversation:
    messages: list[dict]
    tools: list | None = None


@dataclass
class Rendered:
    text: str


@dataclass
class Plain:
    text: str


Sample = Conversation | Rendered | Plain


def parse_line(line: str, format: str) -> Sample:
    """The sample of one line. format: auto, sharegpt, hy_v3, text."""
    if len(line) > MAX_LINE_BYTES:
        raise LineError(f"longer than {MAX_LINE_BYTES >> 20} MB")
    if format == "text":
        return Plain(_text_of(line))
    record = _record_of(line)
    if format == "auto":
        format = _format_of(record)
    if format == "hy_v3":
        return Rendered(_string_at(record, "applied_message"))
    if format == "sharegpt":
        return _conversation_of(record)
    if format == "text_record":
        return Plain(_string_at(record, "text"))
    raise LineError(f"unknown format {format}")


def _record_of(line: str) -> dict:
    try:
        record = json.loads(line)
    except RecursionError:
        raise LineError("JSON is nested too deeply") from None
    except ValueError as error:
        raise LineError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise LineError(f"expected a JSON object, found {_kind(record)}")
    return record


def _format_of(record: dict) -> str:
    if "messages" in record or "conversations" in record:
        return "sharegpt"
    if "applied_message" in record:
        return "hy_v3"
    if "text" in record:
        return "text_record"
    keys = ", ".join(sorted(map(str, record))[:8]) or "none"
    raise LineError(f"expected a key messages, conversations, applied_message or text; keys: {keys}")


def _text_of(line: str) -> str:
    """The `text` of a JSON object that has one, else the line itself."""
    if line.lstrip().startswith("{"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return line
        if isinstance(record, dict) and "text" in record:
            return _string_at(record, "text")
    return line


def _string_at(record: dict, key: str) -> str:
    if key not in record:
        raise LineError(f"no key {key}")
    if not isinstance(record[key], str):
        raise LineError(f"{key} must be a string, found {_kind(record[key])}")
    if not record[key]:
        raise LineError(f"{key} is empty")
    return record[key]


def _conversation_of(record: dict) -> Conversation:
    key = "messages" if "messages" in record else "conversations"
    turns = record.get(key)
    if not isinstance(turns, list):
        raise LineError(f"{key} must be a list of turns, found {_kind(turns) if key in record else 'no such key'}")
    if not turns:
        raise LineError(f"{key} is empty")
    messages = [_message_of(turn, f"{key}[{index}]") for index, turn in enumerate(turns)]
    if key == "conversations" and messages[0]["role"] != "system" and isinstance(record.get("system"), str) and record["system"]:
        messages.insert(0, {"role": "system", "content": record["system"]})
    return Conversation(messages, _tools_of(record))


def _message_of(turn: object, where: str) -> dict:
    """Both spellings of a turn, {role, content} and {from, value}; other keys (tool_calls, reasoning_content, ...) are kept."""
    if not isinstance(turn, dict):
        raise LineError(f"{where} must be an object, found {_kind(turn)}")
    role_key = "role" if "role" in turn else "from"
    content_key = "content" if "content" in turn or role_key == "role" else "value"
    role = turn.get(role_key)
    if not isinstance(role, str) or role not in ROLES:
        found = "missing" if role is None else repr(role)
        raise LineError(f"{where}: role is {found}; known roles: {', '.join(ROLES)}")
    message = {name: value for name, value in turn.items() if name not in (role_key, content_key) and value is not None}
    message["role"] = ROLES[role]
    content = _content_of(turn.get(content_key), f"{where}.{content_key}")
    if content is not None:
        message["content"] = content
    elif "tool_calls" not in message:
        raise LineError(f"{where}: no {content_key}")
    return message


def _content_of(content: object, where: str) -> str | None:
    """A string, or the joined text of a list of text parts."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
        return "".join(part["text"] for part in content)
    raise LineError(f"{where} must be text, found {_kind(content)}")


def _tools_of(record: dict) -> list | None:
    tools = record.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except ValueError as error:
            raise LineError(f"tools: not JSON: {error}") from None
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise LineError(f"tools must be a list of objects, found {_kind(tools)}")
    return tools


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
