"""From an item to the messages that are sent. Templates are Jinja, sandboxed and strict; columns are the names.

A column that the dataset lacks is found by `validate`, before any work. No prompt is ever sent with a hole in it.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson
from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evalpipe.config import PromptConfig
from evalpipe.errors import ConfigError, DataError
from evalpipe.records import Request, WorkItem

MESSAGES = "messages"  # a column of this name is sent as it is
CHARS_PER_TOKEN = 4  # of English text, roughly, in every tokenizer in use; good to 30 %


class _Null(Exception):
    """A template printed a null."""


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise _Null
    return value


class Prompter:
    """Renders requests. Built from the config; raises ConfigError when a template is not valid Jinja."""

    def __init__(self, config: PromptConfig) -> None:
        self._environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, finalize=_refuse_null)
        self._sources = {"prompt.template": config.template}
        if config.system is not None:
            self._sources["prompt.system"] = config.system
        self._templates = {setting: self._compile(setting, source) for setting, source in self._sources.items()}
        self._shots = [
            {"role": role, "content": text}
            for shot in config.few_shot
            for role, text in (("user", shot.user), ("assistant", shot.assistant))
        ]
        self._instruction = config.instruction

    def validate(self, columns: Collection[str]) -> None:
        """Raise ConfigError when a template uses a name that is no column. With a column `messages` none is used."""
        if MESSAGES in columns:
            return
        for setting, source in self._sources.items():
            missing = sorted(self._names(source) - set(columns))
            if missing:
                near = difflib.get_close_matches(missing[0], columns, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise ConfigError(f"{setting}: no column {missing[0]!r}; {hint}columns: {', '.join(sorted(columns))}")

    def request(self, item: WorkItem) -> Request:
        """Render one item: an optional system message, the worked examples, and a user message of template, blank line,
        instruction.

        A column `messages` (a list of {role, content}) is sent as it is instead. Raises DataError when the item's
        prompt would be empty or print a null, ConfigError when a template cannot be rendered.
        """
        given = item.example.fields.get(MESSAGES)
        messages = self._render(item) if given is None else _checked(given, item.example.item_id)
        return Request(
            key=item.key,
            item_id=item.example.item_id,
            messages=messages,
            prompt=_readable(messages),
            prompt_sha256=hashlib.sha256(orjson.dumps(messages, option=orjson.OPT_SORT_KEYS)).hexdigest(),
        )

    def _compile(self, setting: str, source: str) -> Template:
        try:
            return self._environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigError(f"{setting} line {error.lineno}: {error.message}") from None

    def _names(self, source: str) -> set[str]:
        """Return the names a template needs; one that it tests (`is defined`) or gives a default is not needed."""
        tree = self._environment.parse(source)
        optional = {
            node.node.name
            for node in tree.find_all((nodes.Test, nodes.Filter))
            if node.name in {"defined", "undefined", "default", "d"} and isinstance(node.node, nodes.Name)
        }
        return meta.find_undeclared_variables(tree) - optional - self._environment.globals.keys()

    def _render(self, item: WorkItem) -> list[dict[str, str]]:
        texts = {setting: self._text(setting, item) for setting in self._templates}
        user = texts["prompt.template"]
        if self._instruction:
            user = f"{user}\n\n{self._instruction}"
        system = [{"role": "system", "content": texts["prompt.system"]}] if "prompt.system" in texts else []
        return [*system, *self._shots, {"role": "user", "content": user}]

    def _text(self, setting: str, item: WorkItem) -> str:
        example = item.example
        try:
            text = self._templates[setting].render(example.fields)
        except _Null:
            raise DataError(f"item {example.item_id!r}: {setting} prints a column that is null here") from None
        except UndefinedError as error:
            columns = ", ".join(sorted(example.fields))
            raise ConfigError(f"{setting}: {error.message} (item {example.item_id!r}); columns: {columns}") from None
        except TemplateError as error:
            raise ConfigError(f"{setting} (item {example.item_id!r}): {error.message}") from None
        except Exception as error:  # the template's own expression; its message may quote the prompt, so it is left out
            raise ConfigError(f"{setting} fails on item {example.item_id!r}: {type(error).__name__}") from error
        if not text.strip():
            raise DataError(f"item {example.item_id!r}: {setting} renders to an empty text")
        return text


def estimate_tokens(text: str) -> int:
    """Guess the tokens of a text: characters / 4, rounded up. For expected work and dry runs, never for usage."""
    return -(-len(text) // CHARS_PER_TOKEN)


def _checked(given: Any, item_id: str) -> Sequence[Mapping[str, str]]:
    if isinstance(given, list) and given and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in given):
        return given
    raise DataError(
        f"item {item_id!r}: column 'messages' must be a list of {{role, content}}, got {type(given).__name__}"
    )


def _readable(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that is stored: a lone message as it is, several each after its role."""
    if len(messages) == 1:
        return _content(messages[0])
    return "\n\n".join(f"{message['role']}: {_content(message)}" for message in messages)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else orjson.dumps(content or "").decode()
