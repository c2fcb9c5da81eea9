"""Where a value is in a record: the names of the fields, from the outermost one in.

address.city        the field city of the object address
address\\.city       the field called address.city
$['a.b'].city       the same idea in JSONPath: https://www.rfc-editor.org/rfc/rfc9535
"""

from __future__ import annotations

import re

Path = tuple[str, ...]

_STEP = re.compile(
    r"\.(?P<name>[^.\[\]'\"\\]+)|\[(?:'(?P<one>(?:[^'\\]|\\.)*)'|\"(?P<two>(?:[^\"\\]|\\.)*)\")\]"
)
_ESCAPED = re.compile(r"\\(.)")


def path_from_text(text: str) -> Path:
    """Raises ValueError with a sentence."""
    if text == "$" or text.startswith(("$.", "$[")):
        return _json_path(text)
    steps, step, place = [], "", 0
    while place < len(text):
        if text[place] == "\\" and place + 1 < len(text):
            step += text[place + 1]
            place += 2
            continue
        if text[place] == ".":
            steps.append(step)
            step = ""
        else:
            step += text[place]
        place += 1
    path = (*steps, step)
    if not all(path):
        raise ValueError(f"{text!r} is not the path of a field: write address.city")
    return path


def path_as_text(path: Path) -> str:
    """What `path_from_text` reads."""
    text = ".".join(re.sub(r"([.\\])", r"\\\1", step) for step in path)
    return f"\\{text}" if text.startswith("$") else text


def _json_path(text: str) -> Path:
    steps, place = [], 1
    while place < len(text):
        match = _STEP.match(text, place)
        if match is None:
            break
        found = next(one for one in match.groups() if one is not None)
        steps.append(_ESCAPED.sub(r"\1", found))
        place = match.end()
    if not steps or place < len(text) or not all(steps):
        raise ValueError(
            f"{text!r} is not a JSON path of fields: write $.address.city or $['a.b'].city"
        )
    return tuple(steps)
