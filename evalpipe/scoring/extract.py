r"""The final answer inside a chatty response.

Nothing here judges: what is found is stored beside the score, so that anybody can see what was compared. Every step is
one pass over a bounded tail of the text, so that no response, however hostile, costs more than a few milliseconds.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

TAIL_CHARS = 100_000  # a final answer stands at the end; what is further away is never read
NEAR_END_CHARS = 400
MAX_ANSWER_CHARS = 10_000  # of what is stored; a longer "answer" is a response without one
MAX_JSON_TRIES = 1_000  # that fail; each counts the lines before it to say where

_WRAPPING = " \t\r\n*_`\"'“”‘’«»$"
_PUNCTUATION = ".,;:。，；："
_ANSWER_LABEL = re.compile(r"\banswer[*_`]{0,3}[ \t]?[:：][*_`]{0,3}", re.IGNORECASE)
_FINAL_IS = re.compile(r"\bfinal answer is\b[ \t]?:?", re.IGNORECASE)
_ANSWER_IS = re.compile(r"\banswer is\b[ \t]?:?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?][*_`$]{0,3}\s+(?=[A-Z])")
_BRACE = re.compile(r"\\[{}]|\\f?boxed ?\{|[{}]")
_OBJECT_START = re.compile(r'\{\s*["}]')
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}")


def extract_answer(text: str, pattern: str | re.Pattern[str] | None = None) -> str:
    r"""Return the final answer, cleaned, or "" where none is found.

    pattern: a regular expression whose group 1 is the answer; its last match counts, and without a match there is no
    answer. None: the last "Answer: X" (also in bold, also with X on the next line), else the last "final answer is X",
    else the last balanced \boxed{X}, else the last "answer is X", else the last line that says something. Thoughts up
    to "</think>" are skipped.
    Of each match only the last `TAIL_CHARS` characters of the text are seen, and `MAX_ANSWER_CHARS` are returned.
    """
    tail = text[-TAIL_CHARS:].rpartition("</think>")[2]
    found = _by_pattern(tail, pattern) if pattern is not None else _by_custom(tail)
    return clean_answer(found)[:MAX_ANSWER_CHARS]


def clean_answer(text: str) -> str:
    r"""Strip emphasis, quotes, `$`, \( \), \text{} and trailing punctuation; the same on both sides of a comparison."""
    bare = text.strip(_WRAPPING).rstrip(_PUNCTUATION + _WRAPPING)
    for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]")):
        if bare.startswith(opening) and bare.endswith(closing):
            bare = bare[2:-2].strip(_WRAPPING)
    wrapped = _LATEX_TEXT.fullmatch(bare)
    return wrapped[1].strip() if wrapped else bare


def extract_json(text: str, field: str | None = None) -> str:
    """Return the field (dotted path) of the last JSON object in the text, "" where there is none.

    Strings come back as they are, all else as JSON text. field None: the whole object, as canonical JSON text.
    """
    found: Any = _last(_json_objects(text[-TAIL_CHARS:]))
    for name in field.split(".") if field else ():
        found = found.get(name) if isinstance(found, dict) else None
    if found is None or isinstance(found, str):
        return found or ""
    return json.dumps(found, sort_keys=True, ensure_ascii=False)


def _by_pattern(text: str, pattern: str | re.Pattern[str]) -> str:
    last = _last(re.finditer(pattern, text))
    return (last[1] or "") if last else ""


def _last(found: Iterable[T]) -> T | None:
    newest = deque(found, maxlen=1)
    return newest[0] if newest else None


def _by_custom(text: str) -> str:
    """Try what models do by custom, the clearest sign first."""
    labelled = _after_last(_ANSWER_LABEL, text)
    if labelled:
        return _boxed(labelled) or _said(_ANSWER_IS, labelled) or labelled
    final = _said(_FINAL_IS, text)
    return _boxed(final) or final or _boxed(text) or _said(_ANSWER_IS, text) or _last_line(text)


def _said(mark: re.Pattern[str], text: str) -> str:
    """Return what follows the last mark, to the end of its sentence."""
    return _SENTENCE_END.split(_after_last(mark, text), maxsplit=1)[0]


def _after_last(mark: re.Pattern[str], text: str) -> str:
    """Return the rest of the line after the last mark or, where that is empty, the next line that is not; else ""."""
    # the last match of all lies near the end as a rule; `finditer` from there costs a tenth of reading everything
    last = _last(mark.finditer(text, max(len(text) - NEAR_END_CHARS, 0))) or _last(mark.finditer(text))
    if last is None:
        return ""
    lines = text[last.end() :].split("\n", maxsplit=8)[:8]  # a heading, then at most a few blank lines
    return next((line for line in lines if clean_answer(line)), "")


def _boxed(text: str) -> str:
    r"""Return the content of the \boxed{} that closes last; one pass with a stack, whatever the braces do."""
    answer = ""
    open_braces: list[int] = []  # where the content of a box starts, -1 for any other brace
    for match in _BRACE.finditer(text):
        token = match[0]
        if token.endswith(("boxed{", "boxed {")):
            open_braces.append(match.end())
        elif token == "{":
            open_braces.append(-1)
        elif token == "}" and open_braces and (start := open_braces.pop()) >= 0:
            answer = text[start : match.start()]
    return answer


def _last_line(text: str) -> str:
    """Return the last line with more than decoration; code fences and rules are none."""
    end = len(text.rstrip(_WRAPPING + _PUNCTUATION + "-=~#>"))
    return text[text.rfind("\n", 0, end) + 1 :].split("\n", maxsplit=1)[0].lstrip("#> ") if end else ""


def _json_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the outermost JSON objects in order, among prose and code fences.

    What failed tries read in vain is bounded by four times the text, so that nested rubbish costs no square.
    """
    decoder = json.JSONDecoder()
    work_left, tries_left = 4 * len(text), MAX_JSON_TRIES
    start = _OBJECT_START.search(text)
    while start and work_left > 0 and tries_left > 0:
        at, end = start.start(), start.start() + 1
        try:
            found, end = decoder.raw_decode(text, at)
            yield found
        except ValueError as error:  # JSONDecodeError; or a number of more digits than Python reads
            work_left -= max(1, getattr(error, "pos", len(text)) - at)
            tries_left -= 1
        except RecursionError:  # nested deeper than any answer
            return
        start = _OBJECT_START.search(text, end)
