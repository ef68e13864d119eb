"""``grid.batch=1,2`` on the command line, as users of Hydra expect it.

``key=value`` sets, ``+key=value`` does too, ``~key`` takes away. A value is read as TOML
(``[1, 2]``, ``"a"``, ``true``); what is no TOML is text, and commas outside quotes and brackets
make a list.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from frameworktax.errors import UsageError

FORM = "write key=value, as in grid.batch=1,2, or ~exclude to leave a part out"


def apply(data: dict[str, Any], words: list[str]) -> dict[str, str]:
    """Change the data of a study as the words say.

    Returns:
        Dotted path → the word that set it, for messages.

    Raises:
        UsageError: a word of another form, or a path that leads nowhere.
    """
    typed: dict[str, str] = {}
    for word in words:
        if word.startswith("~"):
            key = word[1:].partition("=")[0]
            path = _path(key, word)
            holder = _walk(data, path[:-1], word, make=False)
            if isinstance(holder, list):
                del holder[_index(holder, path[-1], word)]
            elif path[-1] in holder:
                del holder[path[-1]]
            else:
                raise UsageError(f"'{word}': the study has no {key}")
            continue
        key, equals, text = word.lstrip("+").partition("=")
        if not equals:
            raise UsageError(f"'{word}' is no override; {FORM}")
        path = _path(key, word)
        holder = _walk(data, path[:-1], word, make=True)
        if isinstance(holder, list):
            holder[_index(holder, path[-1], word)] = value_of(text)
        else:
            holder[path[-1]] = value_of(text)
        typed[".".join(path)] = word
    return typed


def value_of(text: str) -> Any:
    """Return what was typed: TOML, else a list by commas, else text."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    inner = re.fullmatch(r"\s*\[(.*)\]\s*", text)
    parts = _split(inner[1] if inner else text)
    if len(parts) > 1 or inner:
        return [value_of(part) for part in parts if part.strip()]
    return text


def _split(text: str) -> list[str]:
    """Split at commas that stand outside quotes and brackets."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[]{}":
            depth += 1 if character in "[{" else -1
        elif character == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += character
    return parts


def _path(key: str, word: str) -> list[str]:
    path = [part.strip() for part in key.split(".")]
    if not all(path):
        raise UsageError(f"'{word}' is no override; {FORM}")
    return path


def _walk(data: dict[str, Any], path: list[str], word: str, *, make: bool) -> Any:
    holder: Any = data
    for part in path:
        if isinstance(holder, list):
            holder = holder[_index(holder, part, word)]
        elif isinstance(holder, dict) and (part in holder or make):
            holder = holder.setdefault(part, {})
        else:
            raise UsageError(f"'{word}': the study has no {'.'.join(path)}")
    if not isinstance(holder, dict | list):
        raise UsageError(f"'{word}': {'.'.join(path)} is no table; {FORM}")
    return holder


def _index(holder: list[Any], part: str, word: str) -> int:
    if part.isdigit() and int(part) < len(holder):
        return int(part)
    raise UsageError(f"'{word}': '{part}' is none of the entries 0 to {len(holder) - 1}")
