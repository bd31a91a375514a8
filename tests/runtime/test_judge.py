"""Scorers that may do anything: they are bounded in time, and one that ends badly costs its own verdict only."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from evalpipe.config import ScorerConfig
from evalpipe.records import Completion, Example, Score, Status
from evalpipe.runtime.judge import Judge
from evalpipe.runtime.rows import Verdict

ENDLESS = "a" * 60 + "b"


def as_told(example: Example, completion: Completion) -> float:
    """A user's scorer that does what the answer says."""
    os.write(1, b"a line that is no answer\n")
    match completion.text:
        case "exit":
            os._exit(3)
        case "sleep":
            time.sleep(60)  # what the alarm has to end; nothing waits for it
        case "raise":
            raise ValueError("bad reference")
    return float(completion.text == example.expected)


def answer(text: str) -> Completion:
    return Completion(text, "stop", Status.OK, 1.0, None, None, 1, 1)


def with_judge(act: Callable[[Judge], Awaitable[Any]], *, limit_s: float = 5.0, **settings: Any) -> Any:
    async def main() -> Any:
        judge = Judge(ScorerConfig(**settings), limit_s=limit_s)
        try:
            return await act(judge)
        finally:
            await judge.aclose()

    return asyncio.run(main())


def verdicts(*texts: str, limit_s: float = 5.0, **settings: Any) -> list[Verdict]:
    """Judge one answer after another against the reference "yes"."""
    example = Example(0, "q0", "", "yes", {})

    async def act(judge: Judge) -> list[Verdict]:
        return [await judge.judge(example, answer(text)) for text in texts]

    return with_judge(act, limit_s=limit_s, **settings)


def test_a_quick_scorer_needs_no_process():
    """It answers at once, on the loop."""
    example = Example(0, "q0", "", "yes", {})

    async def act(judge: Judge) -> tuple[Verdict, Any]:
        return await judge.judge(example, answer("Answer: yes")), judge._process

    verdict, process = with_judge(act, name="exact")

    assert verdict == Verdict(Score(1.0, True, "yes"))
    assert process is None


def test_a_users_function_judges_apart():
    """What it prints does not stand between the answers; what it raises is why there is no verdict."""
    right, wrong, raised = verdicts("yes", "no", "raise", name=f"{__name__}:as_told")

    assert (right.score and right.score.correct, wrong.score and wrong.score.correct) == (True, False)
    assert raised.score is None and "bad reference" in (raised.error or "")


@pytest.mark.parametrize(
    ("text", "why"), [("exit", "ended its process (3) at item 'q0'"), ("sleep", "took longer than 0.5 s at item 'q0'")]
)
def test_one_that_ends_badly_costs_its_own_verdict_only(text: str, why: str):
    """The next answer gets another process."""
    failed, after = verdicts(text, "yes", limit_s=0.5, name=f"{__name__}:as_told")

    assert failed.score is None and why in (failed.error or "")
    assert after.score is not None and after.score.correct


def test_a_pattern_that_never_ends_is_ended():
    """It runs inside C, where no exception and no signal handler reaches it."""
    endless, after = verdicts(ENDLESS, "a", limit_s=0.5, name="exact", answer_pattern=r"^(a+)+$")

    assert "took longer than 0.5 s" in (endless.error or "")
    assert after.error is None


def test_a_question_that_nobody_waits_for_is_not_the_answer_to_the_next():
    """A worker that is cancelled while it scores throws the process away."""
    example = Example(0, "q0", "", "yes", {})

    async def act(judge: Judge) -> Verdict:
        await judge.judge(example, answer("no"))  # the process is up
        asked = asyncio.create_task(judge.judge(example, answer("sleep")))
        await asyncio.sleep(0.05)  # the question is out
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        return await judge.judge(example, answer("yes"))

    verdict = with_judge(act, name=f"{__name__}:as_told")

    assert verdict.score is not None and verdict.score.correct


def test_those_who_wait_are_counted():
    """The worker sends no more while too many wait."""
    example = Example(0, "q0", "", "yes", {})

    async def act(judge: Judge) -> tuple[int, int]:
        asked = [asyncio.create_task(judge.judge(example, answer("yes"))) for _ in range(5)]
        await asyncio.sleep(0)
        waiting = judge.waiting
        await asyncio.gather(*asked)
        return waiting, judge.waiting

    assert with_judge(act, name=f"{__name__}:as_told") == (5, 0)
