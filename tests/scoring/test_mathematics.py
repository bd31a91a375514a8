"""Mathematical equality: what ours decides, what the library decides, and what is no mathematics."""

from __future__ import annotations

import sys

import pytest

from evalpipe.config import ScorerConfig
from evalpipe.errors import ConfigError
from evalpipe.records import Completion, Example, Status
from evalpipe.scoring.mathematics import equal
from evalpipe.scoring.scorers import build_scorer


@pytest.mark.parametrize(
    ("expected", "extracted", "verdict"),
    [
        ("0.5", r"\frac{1}{2}", 1.0),
        ("12", "12.0", 1.0),
        ("x^2+2x+1", "(x+1)^2", 1.0),
        (r"\{1, 2\}", r"\{2, 1\}", 1.0),
        (r"\sqrt{2}", "1.41421", 0.0),
        ("12", "13", 0.0),
        ("x + 1", "x - 1", 0.0),
        ("no solution", "No Solution", 1.0),
    ],
)
def test_equal_is_what_mathematics_calls_so(expected: str, extracted: str, verdict: float):
    """The same value in another form is right; one that is near is not."""
    assert equal()(expected, extracted) == verdict


def test_the_final_answer_of_a_response_is_judged():
    """Extraction is that of every scorer."""
    scorer = build_scorer(ScorerConfig(name="math"))
    completion = Completion(r"So it is \boxed{\frac{6}{4}}.", "stop", Status.OK, 1.0, None, None, 1, 1)

    score = scorer(Example(0, "q", "", "1.5", {}), completion)

    assert score is not None and score.correct


def test_it_is_never_judged_on_the_workers_loop():
    """A symbolic engine may take for ever."""
    assert not build_scorer(ScorerConfig(name="math")).is_quick(Example(0, "q", "", "1", {}))


def test_without_the_library_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    """Before any work, not at the first answer."""
    monkeypatch.setitem(sys.modules, "math_verify", None)

    with pytest.raises(ConfigError, match=r"pip install 'evalpipe\[math\]'"):
        build_scorer(ScorerConfig(name="math"))
