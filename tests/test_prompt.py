"""Prompts: what is rendered, what is refused, and that a refusal names what would do."""

from __future__ import annotations

import pytest

from evalpipe.config import PromptConfig, Shot
from evalpipe.errors import ConfigError, DataError
from evalpipe.prompt import Prompter, estimate_tokens
from evalpipe.records import Example, Key, Request, WorkItem


def item(**fields: object) -> WorkItem:
    return WorkItem(Example(item_index=3, item_id="q3", category="", expected=None, fields=fields), repeat=1)


def render(config: PromptConfig, **fields: object) -> Request:
    return Prompter(config).request(item(**fields))


def test_question_then_blank_line_then_instruction():
    """By default one user message holds the question and how to answer."""
    request = render(PromptConfig(instruction="Answer briefly."), question="1 + 1?")

    assert request.messages == [{"role": "user", "content": "1 + 1?\n\nAnswer briefly."}]
    assert request.prompt == "1 + 1?\n\nAnswer briefly."
    assert (request.key, request.item_id) == (Key(3, 1, 0), "q3")


def test_system_message_comes_first_and_is_a_template():
    """The stored prompt shows both messages, each after its role."""
    config = PromptConfig(system="You teach {{ subject }}.", instruction="")

    request = render(config, question="Why?", subject="logic")

    assert request.messages == [
        {"role": "system", "content": "You teach logic."},
        {"role": "user", "content": "Why?"},
    ]
    assert request.prompt == "system: You teach logic.\n\nuser: Why?"


def test_worked_examples_stand_between_system_and_item():
    """They are turns of a conversation, sent as they are: braces in them mean nothing."""
    shots = (Shot(user="{{ 1 }}?", assistant="Answer: 1"), Shot(user="2?", assistant="Answer: 2"))

    request = render(PromptConfig(system="S", few_shot=shots, instruction=""), question="3?")

    assert [(message["role"], message["content"]) for message in request.messages] == [
        ("system", "S"),
        ("user", "{{ 1 }}?"),
        ("assistant", "Answer: 1"),
        ("user", "2?"),
        ("assistant", "Answer: 2"),
        ("user", "3?"),
    ]


def test_messages_column_is_sent_as_it_is():
    """Neither template, system text nor instruction touch a conversation that the dataset brings."""
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}]

    request = render(PromptConfig(system="other"), messages=messages)

    assert request.messages == messages
    assert request.prompt == 'system: S\n\nuser: [{"type":"text","text":"U"}]'


@pytest.mark.parametrize("messages", ["text", [], ["text"], [{"content": "no role"}], 3])
def test_odd_messages_are_refused(messages):
    """What is no conversation is not sent as one."""
    with pytest.raises(DataError, match=r"item 'q3': column 'messages' must be a list"):
        render(PromptConfig(), messages=messages)


def test_hash_follows_the_messages_alone():
    """The same messages have the same hash whatever the order of their keys; other messages another."""
    one = render(PromptConfig(), messages=[{"role": "user", "content": "a"}])
    two = render(PromptConfig(), messages=[{"content": "a", "role": "user"}])
    three = render(PromptConfig(), messages=[{"role": "user", "content": "b"}])

    assert one.prompt_sha256 == two.prompt_sha256 != three.prompt_sha256
    assert len(one.prompt_sha256) == 64


def test_missing_column_is_found_before_any_work():
    """validate names the setting, the missing name, the nearest column and all that exist."""
    prompter = Prompter(PromptConfig(template="{{ qestion }}"))

    with pytest.raises(ConfigError) as caught:
        prompter.validate(["question", "answer"])

    assert str(caught.value) == (
        "prompt.template: no column 'qestion'; did you mean 'question'? columns: answer, question"
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ question }}",
        "{% for n in range(3) %}{{ n }}{% endfor %}",
        "{% if hint is defined %}{{ hint }}{% endif %}{{ question }}",
        "{{ hint | default('none') }}",
        "{% set shown = question %}{{ shown }}",
    ],
)
def test_valid_templates_pass(template):
    """Jinja's own names, names set in the template and names that may be absent are no missing columns."""
    prompter = Prompter(PromptConfig(template=template))

    prompter.validate(["question"])

    assert prompter.request(item(question="q")).prompt


def test_template_is_not_asked_for_where_messages_exist():
    """With a column of messages the default template's `question` need not exist."""
    prompter = Prompter(PromptConfig())

    prompter.validate(["custom_id", "messages"])

    assert prompter.request(item(messages=[{"role": "user", "content": "hi"}])).prompt == "hi"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ missing }}", r"prompt\.template: 'missing' is undefined \(item 'q3'\); columns: question"),
        ("{{ question.nothing }}", r"has no attribute 'nothing'"),
        ("{{ question.__class__.__mro__ }}", r"access to attribute '__class__' .* is unsafe"),
        ("{{ question + 1 }}", r"prompt\.template fails on item 'q3': TypeError$"),
        ("{{ range(10000000) | list }}", r"fails on item 'q3': OverflowError$"),
    ],
)
def test_templates_that_cannot_be_rendered_are_config_errors(template, message):
    """The message names the item, and never quotes what the item holds."""
    with pytest.raises(ConfigError, match=message) as caught:
        render(PromptConfig(template=template), question="secret text")

    assert "secret text" not in str(caught.value)


def test_syntax_error_names_the_line():
    """A broken template is refused when the prompter is built."""
    with pytest.raises(ConfigError, match=r"^prompt\.template line 2: "):
        Prompter(PromptConfig(template="one\n{{ two"))


def test_null_is_never_printed():
    """A prompt with the word None in place of the question would be paid for and scored."""
    with pytest.raises(DataError, match=r"item 'q3': prompt\.template prints a column that is null here"):
        render(PromptConfig(), question=None)


def test_empty_prompt_is_refused():
    """The instruction alone is no question."""
    with pytest.raises(DataError, match=r"item 'q3': prompt\.template renders to an empty text"):
        render(PromptConfig(), question=" \n")


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2)])
def test_token_estimate_rounds_up(text, tokens):
    """Four characters a token; only nothing costs nothing."""
    assert estimate_tokens(text) == tokens
