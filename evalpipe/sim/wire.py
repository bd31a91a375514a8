"""The shapes of OpenAI's HTTP interface: requests read, responses written. Bytes in, bytes out.

Only what the simulated server serves. The prompt's tokens are its characters / 4, which is what the models count with.
"""

from __future__ import annotations

import base64
import hashlib
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

import orjson

Kind = Literal["chat", "text", "embedding"]
CHARS_PER_TOKEN = 4
DIMENSIONS = 384


class BadRequest(Exception):
    """A request the server refuses as it is; never leaves the server."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status = status
        self.body = error_body(message, code=code, kind="invalid_request_error")


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, read and checked.

    text: the last user message, the prompt, or all inputs joined. inputs: of embeddings, one each.
    max_tokens: None for no bound. dimensions, encoding: of embeddings.
    """

    kind: Kind
    text: str
    prompt_tokens: int
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    inputs: tuple[str, ...] = ()
    dimensions: int = DIMENSIONS
    encoding: str = "float"


@dataclass(frozen=True, slots=True)
class Trace:
    """What the X-Evalpipe header says: run/item/repeat/generation/attempt;epoch;limit, run and item percent-encoded."""

    run: str
    item: str
    repeat: int
    generation: int
    attempt: int
    epoch: int
    limit: int


def read_trace(header: str | None) -> Trace | None:
    """Read the header; None for no header or one of another form. An item may hold slashes, a run may not."""
    if header is None:
        return None
    try:
        path, epoch, limit = header.rsplit(";", 2)
        names, repeat, generation, attempt = path.rsplit("/", 3)
        run, item = names.split("/", 1)
        return Trace(unquote(run), unquote(item), int(repeat), int(generation), int(attempt), int(epoch), int(limit))
    except ValueError:
        return None


def read_ask(body: bytes, *, kind: Kind, model: str) -> Ask:
    """Read a request for `model`. Raises BadRequest: 400 for a wrong shape, 404 for another model."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BadRequest("the body is not valid JSON") from None
    if not isinstance(data, dict):
        raise BadRequest(f"the body must be an object, got a {type(data).__name__}")
    if data.get("model") != model:
        message = f"the model {data.get('model')!r} does not exist; served: {model}"
        raise BadRequest(message, status=404, code="model_not_found")
    if data.get("n", 1) != 1:
        raise BadRequest(f"n must be 1, got {data['n']!r}")
    if kind == "embedding":
        return _read_embedding(data)
    text, characters = _read_messages(data.get("messages")) if kind == "chat" else _read_prompt(data.get("prompt"))
    options = data.get("stream_options") or {}
    return Ask(
        kind=kind,
        text=text,
        prompt_tokens=count_tokens(characters),
        max_tokens=_read_max_tokens(data, default=None if kind == "chat" else 16),  # OpenAI's default for completions
        stream=bool(data.get("stream", False)),
        include_usage=bool(options.get("include_usage", False)),
    )


def count_tokens(characters: int) -> int:
    return max(-(-characters // CHARS_PER_TOKEN), 1)


def error_body(message: str, *, code: str | int, kind: str) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


def embedding_body(ask: Ask, *, model: str) -> bytes:
    """Return unit vectors that depend on the input's text alone."""
    vectors = [_vector(text, ask.dimensions) for text in ask.inputs]
    data = [
        {"object": "embedding", "index": i, "embedding": _encode(vector, ask.encoding)}
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": ask.prompt_tokens, "total_tokens": ask.prompt_tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


@dataclass(frozen=True, slots=True)
class Twist:
    """What is odd about an answer that is whole. Empty, True and False as below: nothing.

    finish_reason: another one than the true one. refusal: said in the refusal field, in place of the answer.
    has_usage: whether tokens are counted. model: name of another model. has_null_choices: a stream has a chunk whose
    choices are null, as some gateways send for their own news.
    """

    finish_reason: str = ""
    refusal: str = ""
    has_usage: bool = True
    model: str = ""
    has_null_choices: bool = False


HONEST = Twist()


@dataclass(frozen=True, slots=True)
class ReplyWriter:
    """Writes the answer to one chat or text request, whole or as the events of a stream."""

    kind: Kind
    reply_id: str
    model: str
    created: int  # seconds since the Unix epoch
    twist: Twist = HONEST

    def whole(self, text: str, *, finish_reason: str, usage: dict[str, int]) -> bytes:
        chat = {"message": {"role": "assistant", "content": None, **self._said(text)}}
        choice = {"index": 0, **(chat if self.kind == "chat" else {"text": text})}
        choice["finish_reason"] = self.twist.finish_reason or finish_reason
        counted = {"usage": usage} if self.twist.has_usage else {}
        return orjson.dumps({**self._head(""), "choices": [choice], **counted})

    def first(self, text: str) -> bytes:
        news = _event({**self._head(".chunk"), "choices": None}) if self.twist.has_null_choices else b""
        return news + self._chunk({"role": "assistant", **self._said(text)} if self.kind == "chat" else text, None)

    def more(self, text: str) -> bytes:
        return self._chunk(self._said(text) if self.kind == "chat" else text, None)

    def _said(self, text: str) -> dict[str, str]:
        return {"refusal" if self.twist.refusal else "content": text}

    def last(self, text: str, *, finish_reason: str, usage: dict[str, int] | None) -> bytes:
        """The remaining text, the finish, the usage where it was asked for, and the end mark."""
        events = [self.more(text)] if text else []
        events.append(self._chunk({} if self.kind == "chat" else "", self.twist.finish_reason or finish_reason))
        if usage is not None and self.twist.has_usage:
            events.append(_event({**self._head(".chunk"), "choices": [], "usage": usage}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def _chunk(self, content: dict[str, str] | str, finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta" if self.kind == "chat" else "text": content, "finish_reason": finish_reason}
        return _event({**self._head(".chunk"), "choices": [choice]})

    def _head(self, suffix: str) -> dict[str, Any]:
        name = f"chat.completion{suffix}" if self.kind == "chat" else "text_completion"
        return {"id": self.reply_id, "object": name, "created": self.created, "model": self.twist.model or self.model}


def usage_of(prompt_tokens: int, output_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def _read_max_tokens(data: dict[str, Any], *, default: int | None) -> int | None:
    given = data.get("max_completion_tokens", data.get("max_tokens", default))
    if given is None:
        return None
    if not isinstance(given, int) or given < 1:
        raise BadRequest(f"max_tokens must be an integer of at least 1, got {given!r}")
    return given


def _read_messages(messages: Any) -> tuple[str, int]:
    """Return the last user message and the characters of all messages."""
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise BadRequest("messages must be a list of at least one message")
    texts = [_read_content(message.get("content")) for message in messages]
    users = [text for text, message in zip(texts, messages, strict=True) if message.get("role") == "user"]
    return users[-1] if users else texts[-1], sum(map(len, texts))


def _read_content(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if content is None:
        return ""
    raise BadRequest(f"content must be a text or a list of parts, got a {type(content).__name__}")


def _read_prompt(prompt: Any) -> tuple[str, int]:
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequest("prompt must be one text")
    return prompt, len(prompt)


def _read_embedding(data: dict[str, Any]) -> Ask:
    given = data.get("input")
    inputs = [given] if isinstance(given, str) else given
    if not isinstance(inputs, list) or not inputs or not all(isinstance(text, str) for text in inputs):
        raise BadRequest("input must be a text or a list of at least one text")
    dimensions = data.get("dimensions", DIMENSIONS)
    if not isinstance(dimensions, int) or not 1 <= dimensions <= 8192:
        raise BadRequest(f"dimensions must be an integer from 1 to 8192, got {dimensions!r}")
    encoding = data.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise BadRequest(f"encoding_format must be 'float' or 'base64', got {encoding!r}")
    tokens = sum(count_tokens(len(text)) for text in inputs)
    return Ask("embedding", "\n".join(inputs), tokens, inputs=tuple(inputs), dimensions=dimensions, encoding=encoding)


def _vector(text: str, dimensions: int) -> list[float]:
    rng = random.Random(hashlib.sha256(text.encode()).digest())
    raw = [rng.gauss(0, 1) for _ in range(dimensions)]
    norm = sum(x * x for x in raw) ** 0.5
    return [x / norm for x in raw]


def _encode(vector: Sequence[float], encoding: str) -> list[float] | str:
    if encoding == "float":
        return list(vector)
    return base64.b64encode(array("f", vector).tobytes()).decode()  # float32, little-endian on all our platforms
