"""One answer put together from parsed JSON: a whole body, or the chunks of a stream. Pure: no bytes, no clock, no I/O.

Trusts nothing: every value is checked for its type, because servers send lists, null and numbers where text belongs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from evalpipe.endpoint.failures import classify_error_object, make
from evalpipe.records import Completion, Status

#: An event that calls a tool brings about one token of it; its arguments are not worth counting.
_CALL_CHARACTERS = 4

#: Finish reasons by which servers (vLLM, SGLang, gateways) say that the answer is not whole.
_BROKEN_OFF = frozenset({"abort", "error"})
_STATUS_OF_REASON = {"length": Status.TRUNCATED, "content_filter": Status.FILTERED}


class Answer:
    """Collects the first choice of one response: `add_chunk` for each event, or `add_body` once; then `completion`."""

    def __init__(self, *, hide: Sequence[str] = ()) -> None:
        """hide: texts (key, prompts) that must not show in the message of an error."""
        self._hide = hide
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._has_tool_calls = False
        self._finish_reason = ""
        self._usage: Mapping[str, Any] = {}
        self._model = ""

    def add_chunk(self, chunk: object) -> int:
        """Take in one event of a stream; return how many characters of the answer or its reasoning it brought.

        Raises the EndpointError of an error event; bad_body for what is no chunk.
        """
        return self._add(chunk, part="delta")

    def add_body(self, body: object) -> None:
        """Take in a whole response. Raises the EndpointError of an error body; bad_body for what is no completion."""
        self._add(body, part="message")

    def _add(self, data: object, *, part: str) -> int:
        if not isinstance(data, dict):
            raise make("bad_body", f"expected a JSON object, got {type(data).__name__}")
        if data.get("error") is not None:
            raise classify_error_object(data["error"], hide=self._hide)
        if isinstance(usage := data.get("usage"), dict):
            self._usage = usage
        if not self._model and isinstance(model := data.get("model"), str):
            self._model = model
        choices = data.get("choices")
        return self._add_choice(choices[0], part=part) if isinstance(choices, list) and choices else 0

    def _add_choice(self, choice: object, *, part: str) -> int:
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            return 0
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self._finish_reason = reason
        message = choice.get(part)
        return self._add_message(message) if isinstance(message, dict) else 0

    def _add_message(self, message: dict[str, Any]) -> int:
        said = _append(self._text, message.get("content"), name="content")
        # servers disagree on the name: vLLM changed from the first to the second
        thought = message.get("reasoning_content") or message.get("reasoning")
        thought_len = _append(self._reasoning, thought, name="reasoning")
        refused = _append(self._refusal, message.get("refusal"), name="refusal")
        if called := bool(message.get("tool_calls")):
            self._has_tool_calls = True
        return said + thought_len + refused + _CALL_CHARACTERS * called

    def completion(self, *, rtt_s: float, ttft_s: float | None, request_id: str) -> Completion:
        """Return the answer with its timings.

        Raises no_finish without a finish_reason (a server that dies in mid-stream looks like one that ends), cut when
        the server says it broke off, no_answer when there is neither text, refusal nor tool call and no reason for it.
        """
        if not self._finish_reason:
            raise make("no_finish" if self._has_content else "no_answer")
        if self._finish_reason in _BROKEN_OFF:
            raise make("cut", f"the server broke the answer off (finish_reason {self._finish_reason!r})")
        if not self._has_content and self._finish_reason not in _STATUS_OF_REASON:
            raise make("no_answer", f"no content, refusal or tool call (finish_reason {self._finish_reason!r})")
        output_tokens = _count(self._usage, "completion_tokens")
        details = self._usage.get("prompt_tokens_details")
        return Completion(
            text="".join(self._text) or "".join(self._refusal),
            finish_reason=self._finish_reason,
            status=self._status(),
            rtt_s=rtt_s,
            ttft_s=ttft_s,
            tpot_s=(rtt_s - ttft_s) / (output_tokens - 1) if ttft_s is not None and output_tokens > 1 else None,
            prompt_tokens=_count(self._usage, "prompt_tokens"),
            output_tokens=output_tokens,
            cached_tokens=_count(details, "cached_tokens") if isinstance(details, dict) else 0,
            usage_source="server" if _is_count(self._usage.get("completion_tokens")) else "none",
            reasoning="".join(self._reasoning),
            model=self._model,
            request_id=request_id,
        )

    @property
    def _has_content(self) -> bool:
        """An empty text is an answer; no text at all is none."""
        return bool(self._text or self._reasoning or self._refusal or self._has_tool_calls)

    def _status(self) -> Status:
        if self._finish_reason in _STATUS_OF_REASON:
            return _STATUS_OF_REASON[self._finish_reason]
        return Status.REFUSED if any(self._refusal) else Status.OK


def _append(parts: list[str], value: object, *, name: str) -> int:
    if value is None:
        return 0
    if not isinstance(value, str):
        raise make("bad_body", f"{name} should be text, got {type(value).__name__}")
    parts.append(value)
    return len(value)


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if _is_count(value) else 0


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
