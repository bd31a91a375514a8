"""The values that flow through a run, left to right: Example, Request, Completion, Score, Result.

Values only: frozen, no I/O, no clock. Instants are float seconds, monotonic and valid inside one process,
except `sent_at` of a Result, which is a UTC wall-clock time for people and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class Packed:
    """Pickles a slotted dataclass as a call of its class: a tenth of the time of what dataclasses do by themselves.

    For values that cross processes once an item; all their fields must be arguments of __init__, in order.
    """

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[type[Packed], tuple[Any, ...]]:
        return type(self), tuple([getattr(self, name) for name in self.__slots__])


class Status(StrEnum):
    """What became of an item. All but FAILED are answers."""

    OK = "ok"
    TRUNCATED = "truncated"  # finish_reason "length"
    FILTERED = "filtered"  # finish_reason "content_filter"
    REFUSED = "refused"  # the model's own refusal field
    FAILED = "failed"


class Key(NamedTuple):
    """Identity of a result. item_index is dense from 0; repeat and generation count from 0."""

    item_index: int
    repeat: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Example(Packed):
    """One row of the dataset, as prompts and scorers see it.

    category: "" where the dataset has none. expected: None where there is no reference answer.
    fields: every column by name, for the prompt template. metadata: columns that are passed through, as JSON text.
    """

    item_index: int
    item_id: str
    category: str
    expected: str | None
    fields: Mapping[str, Any]
    metadata: str = "{}"


@dataclass(frozen=True, slots=True)
class WorkItem(Packed):
    """One result still owed: an example and which repeat and generation of it."""

    example: Example
    repeat: int = 0
    generation: int = 0

    @property
    def key(self) -> Key:
        return Key(self.example.item_index, self.repeat, self.generation)


@dataclass(frozen=True, slots=True)
class Shard(Packed):
    """A small chunk of work lent to one worker; it goes back to the queue when the worker dies."""

    shard_id: int
    items: Sequence[WorkItem]


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent for one work item; the same for each of its attempts.

    messages: OpenAI chat messages. prompt: the rendered text that is stored. prompt_sha256: hex, of the messages.
    """

    key: Key
    item_id: str
    messages: Sequence[Mapping[str, str]]
    prompt: str
    prompt_sha256: str


@dataclass(frozen=True, slots=True)
class Completion:
    """A valid answer of the server, with its timings on the wire.

    rtt_s = last byte - sent; ttft_s = first token - sent, None when the answer was not streamed;
    tpot_s = (rtt_s - ttft_s) / (output_tokens - 1), None below two tokens or without ttft_s.
    usage_source: "server" (usage block) or "none" (counts are 0 and mean unknown).
    """

    text: str
    finish_reason: str
    status: Status
    rtt_s: float
    ttft_s: float | None
    tpot_s: float | None
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    usage_source: str = "none"
    reasoning: str = ""
    model: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """Verdict on one answer. value in [0, 1]; extracted: the final answer that was compared, "" if none was found."""

    value: float
    correct: bool
    extracted: str


@dataclass(frozen=True, slots=True)
class Result:
    """One row of parts/: the columns of store/segments.py, in the same order and with the same names.

    None in an answer or score column means "there is none" (failed, or nothing to compare with), never zero.
    """

    item_id: str
    item_index: int
    repeat: int
    generation: int
    status: str
    category: str
    expected: str | None
    prompt: str | None
    response: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    usage_source: str | None = None
    ttft_s: float | None = None
    rtt_s: float | None = None
    tpot_s: float | None = None
    wait_s: float = 0.0
    attempts: int = 0
    retry_wait_s: float = 0.0
    in_flight_at_send: int | None = None
    limit_at_send: int | None = None
    sent_at: float | None = None  # seconds since the Unix epoch; a UTC timestamp in Parquet
    endpoint: str = ""
    model: str = ""
    request_id: str | None = None
    score: float | None = None
    correct: bool | None = None
    extracted: str | None = None
    error_kind: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    prompt_sha256: str = ""
    worker: str = ""
    writer_epoch: int = 0
    permit_epoch: int | None = None
    metadata: str = "{}"

    @property
    def key(self) -> Key:
        return Key(self.item_index, self.repeat, self.generation)


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One row of attempts/: every try of every item, failed ones too. attempt counts from 1."""

    item_index: int
    repeat: int
    generation: int
    attempt: int
    kind: str  # "ok" or a kind of endpoint/failures.py
    code: str
    message: str
    sent_at: float
    rtt_s: float
    ttft_s: float | None
    output_tokens: int
    retry_after_s: float | None
    in_flight_at_send: int
    limit_at_send: int
    permit_epoch: int
    worker: str
