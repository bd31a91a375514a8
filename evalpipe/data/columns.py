"""Which column is what, and how values become text. Knows rows, not files.

Usual names: id `item_id`, `id`, `custom_id`; reference answer `answer`, `expected`, `target`; category `category`,
`subject`. Columns are judged by the first block of rows: a name that first turns up later is a field, nothing more.

Metadata is one JSON object of what is passed through to the results: the keys of a column `metadata` (an object, or
JSON text of one; else under the key "metadata") and every column that is neither id, answer nor category, nor shown to
the model as `question`, `prompt`, `messages` or `body`. A value of more than 2,000 characters stays out of it.
"""

from __future__ import annotations

import base64
import datetime
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from evalpipe.config import DatasetConfig
from evalpipe.errors import DataError

ID_NAMES = ("item_id", "id", "custom_id")
EXPECTED_NAMES = ("answer", "expected", "target")
CATEGORY_NAMES = ("category", "subject")
METADATA = "metadata"
PROMPT_NAMES = frozenset({"question", "prompt", "messages", "body"})
MAX_PASSED_CHARS = 2000  # longer values are prompt material, and each result row would carry a copy


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of the columns with a meaning. None: there is no such column (ids are then row numbers)."""

    id: str | None
    expected: str | None
    category: str | None

    def passed_through(self, values: Mapping[str, Any]) -> str:
        """Return the metadata of a row as JSON text: always one object."""
        own = {self.id, self.expected, self.category, METADATA} | PROMPT_NAMES
        passed = {name: value for name, value in values.items() if name not in own and _is_short(value)}
        return to_json(_as_object(values.get(METADATA)) | passed)


def choose_roles(config: DatasetConfig, columns: Iterable[str]) -> Roles:
    """Find columns by the names configured, else the usual ones. Raises DataError when a configured one is missing."""
    names = tuple(columns)
    return Roles(
        id=_choose("id_column", config.id_column, ID_NAMES, names),
        expected=_choose("expected_column", config.expected_column, EXPECTED_NAMES, names),
        category=_choose("category_column", config.category_column, CATEGORY_NAMES, names),
    )


def to_text(value: Any) -> str:
    """Render a value as text: text as it is, all else as JSON (true, 3, {"a": 1})."""
    plain = value if _is_json(value) else _plain(value)
    return plain if isinstance(plain, str) else to_json(plain)


def to_json(value: Any) -> str:
    """Render a value as JSON. Dates become ISO text, decimals text, bytes base64, NaN and infinities null.

    Raises DataError for a value of another type.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain, separators=(",", ":"))
    except ValueError:  # only NaN and infinities; rare, so the copy is made here and not before
        return to_json(_without_nan(value))


def _choose(setting: str, given: str | None, usual: tuple[str, ...], columns: tuple[str, ...]) -> str | None:
    if given is None:
        return next((name for name in usual if name in columns), None)
    if given in columns:
        return given
    near = difflib.get_close_matches(given, columns, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DataError(f"dataset.{setting}: no column {given!r}; {hint}the dataset has {', '.join(columns)}")


def _as_object(metadata: Any) -> dict[str, Any]:
    if metadata is None:
        return {}
    value = metadata
    if isinstance(metadata, str):
        try:
            value = json.loads(metadata)
        except ValueError:
            value = metadata
    return value if isinstance(value, dict) else {METADATA: metadata}


def _is_short(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float):
        return True
    return len(value if isinstance(value, str) else to_json(value)) <= MAX_PASSED_CHARS


def _is_json(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int | float | list | dict)


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta():
            return value.total_seconds()
        case Decimal() | UUID():
            return str(value)
    raise DataError(f"the dataset holds a value of type {type(value).__name__}, which has no JSON form")


def _without_nan(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_nan(item) for name, item in value.items()}
        case list() | tuple():
            return [_without_nan(item) for item in value]
        case float() if value != value or abs(value) == float("inf"):
            return None
    return value
