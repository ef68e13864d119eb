"""``grid.batch=1,2`` on the command line, as users of Hydra expect it.

``key=value`` sets, ``+key=value`` and ``++key=value`` do too, ``~key`` takes away, ``~key=value``
only where that is the value. A value is read as TOML (``[1, 2]``, ``"a"``, ``true``); what is no
TOML is text, and commas outside quotes and brackets make a list, as do ``choice(1, 2)`` and
``range(1, 9, 2)``, whose end is left out.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from frameworktax.errors import UsageError

MOST = 10_000
"""Values that a range may have."""
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
            _take_away(data, word)
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


def _take_away(data: dict[str, Any], word: str) -> None:
    key, equals, text = word[1:].partition("=")
    path = _path(key, word)
    holder = _walk(data, path[:-1], word, make=False)
    last: Any = _index(holder, path[-1], word) if isinstance(holder, list) else path[-1]
    if isinstance(holder, dict) and last not in holder:
        raise UsageError(f"'{word}': the study has no {key}")
    if equals and _listed(holder[last]) != _listed(value_of(text)):
        raise UsageError(f"'{word}': {key} is {holder[last]!r}; write ~{key} to take it away")
    del holder[last]


def value_of(text: str) -> Any:
    """Return what was typed: TOML, else a list by commas, else text.

    Raises:
        UsageError: a range without numbers, or of nothing.
    """
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    if found := re.fullmatch(r"\s*range\((.*)\)\s*", text):
        return _range(found[1], text)
    inner = re.fullmatch(r"\s*(?:choice\(|\[)(.*)[\])]\s*", text)
    parts = _split(inner[1] if inner else text)
    if len(parts) > 1 or inner:
        return [value_of(part) for part in parts if part.strip()]
    return text


def _range(inner: str, text: str) -> list[int]:
    numbers = [part.strip() for part in inner.split(",")]
    if not (1 <= len(numbers) <= 3 and all(re.fullmatch(r"-?\d{1,9}", n) for n in numbers)):
        raise UsageError(f"'{text}' is no range; write range(1, 9) or range(1, 9, 2)")
    found = range(*map(int, numbers)) if numbers[2:] != ["0"] else range(0)
    if not 0 < len(found) <= MOST:
        raise UsageError(f"'{text}' has {len(found)} values; give 1 to {MOST}")
    return list(found)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _split(text: str) -> list[str]:
    """Split at commas that stand outside quotes and brackets."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[](){}":
            depth += 1 if character in "[({" else -1
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
        elif part.isdigit():
            form = f'+{path[0]}=[{{models=["mlp"]}}]'
            raise UsageError(f"'{word}': the study has no {path[0]}; write {form}")
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
