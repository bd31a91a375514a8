"""The summary of a run: what it counts, what it claims, and when it refuses to claim."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalpipe.errors import StateError
from evalpipe.report.summary import COLUMNS, Items, Quantiles, Summary, Tokens, format_table, select_newest, summarise
from evalpipe.scoring.statistics import clustered, wilson

SCHEMA = pa.schema(
    [
        ("item_index", pa.int64()),
        ("repeat", pa.int32()),
        ("generation", pa.int32()),
        ("status", pa.string()),
        ("category", pa.string()),
        ("expected", pa.string()),
        ("score", pa.float64()),
        ("correct", pa.bool_()),
        ("error_kind", pa.string()),
        ("rtt_s", pa.float64()),
        ("ttft_s", pa.float64()),
        ("prompt_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("usage_source", pa.string()),
    ]
)


def answer(item: int, correct: bool | None = True, **changes: Any) -> dict[str, Any]:
    row = {"item_index": item, "repeat": 0, "generation": 0, "status": "ok", "category": "", "expected": "5"}
    verdict = {"score": None if correct is None else float(correct), "correct": correct}
    wire = {"rtt_s": 1.0, "ttft_s": 0.1, "prompt_tokens": 10, "output_tokens": 20, "cached_tokens": 4}
    return row | verdict | wire | {"usage_source": "server"} | changes


def failure(item: int, kind: str | None = "server_error", **changes: Any) -> dict[str, Any]:
    row = {"item_index": item, "repeat": 0, "generation": 0, "status": "failed", "category": "", "expected": "5"}
    return row | {"error_kind": kind} | changes


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def summary_of(*rows: dict[str, Any], expected_items: int, **settings: Any) -> Summary:
    return summarise(table(*rows), expected_items=expected_items, **settings)


def test_the_columns_read_are_named():
    """A caller may load COLUMNS and nothing else."""
    assert tuple(SCHEMA.names) == COLUMNS


def test_every_result_is_counted_once():
    """ok counts answers of every kind; ok, failed and missing add up to what is expected."""
    found = summary_of(
        answer(0),
        answer(1, status="truncated"),
        answer(2, status="filtered"),
        answer(3, False, status="refused"),
        failure(4),
        expected_items=7,
    )

    assert found.items == Items(expected=7, ok=4, failed=1, missing=2, truncated=1, filtered=1, refused=1)


def test_a_failure_is_never_a_wrong_answer():
    """Accuracy is over answers; failed and missing results only widen the bounds."""
    found = summary_of(answer(0), answer(1), answer(2, False), failure(3), expected_items=5, coverage=0.5).accuracy

    assert found is not None
    assert (found.correct, found.scored, found.expected) == (2, 3, 5)
    assert found.accuracy == pytest.approx(2 / 3)
    assert (found.worst, found.best) == (2 / 5, 4 / 5)
    assert (found.low, found.high) == wilson(2, 3)


def test_headline_of_a_whole_run():
    """Covered well enough, the headline is accuracy, interval and over how many."""
    rows = [answer(i, i < 1406) for i in range(2000)]

    found = summary_of(*rows, expected_items=2000)

    assert found.is_conclusive
    assert found.headline == "accuracy 0.703 [0.683, 0.723] over 2,000 answered"


@pytest.mark.parametrize(("answered", "is_conclusive"), [(94, False), (95, True), (100, True)])
def test_headline_refuses_below_the_threshold(answered, is_conclusive):
    """Under 95 percent of verdicts no accuracy is claimed, at it one is."""
    found = summary_of(*(answer(i) for i in range(answered)), expected_items=100)

    assert found.is_conclusive is is_conclusive
    assert found.headline.startswith("accuracy" if is_conclusive else "INCONCLUSIVE")


def test_inconclusive_headline_says_what_is_known():
    """The headline names the counts, the threshold and the bounds; its share is never rounded up to the threshold."""
    rows = [answer(i, i < 5000) for i in range(9499)]

    found = summary_of(*rows, expected_items=10_000)

    assert found.headline == (
        "INCONCLUSIVE: 9,499 of 10,000 scored (94.9 %), below the 95 % asked for; accuracy from 0.500 to 0.550"
    )


def test_answers_that_no_scorer_could_judge_lack_coverage():
    """An answer without a verdict is neither right nor wrong, and counts against the coverage."""
    found = summary_of(answer(0), answer(1, None), expected_items=2)

    assert found.items.ok == 2
    assert found.coverage == 0.5
    assert found.accuracy is not None
    assert (found.accuracy.accuracy, found.accuracy.worst, found.accuracy.best) == (1.0, 0.5, 1.0)


def test_rows_without_a_reference_leave_the_denominators():
    """Where there is nothing to compare with, there is nothing to be missing."""
    found = summary_of(answer(0), answer(1, None, expected=None), failure(2, expected=None), expected_items=3)

    assert found.accuracy is not None
    assert found.accuracy.expected == 1
    assert found.is_conclusive


def test_a_scorer_that_needs_no_reference_is_owed_every_verdict():
    """Once rows without a reference are judged, a failed one among them counts against the coverage."""
    found = summary_of(answer(0, expected=None), failure(1, expected=None), expected_items=2)

    assert found.coverage == 0.5


def test_a_run_without_scores_has_no_accuracy():
    """Without any verdict the headline counts answers and claims nothing."""
    found = summary_of(answer(0, None), answer(1, None), expected_items=2)

    assert found.accuracy is None
    assert found.to_dict()["score"] is None
    assert found.headline == "2 of 2 answered, not scored"


def test_an_empty_run_is_inconclusive():
    """No rows at all: everything is missing and nothing is claimed."""
    found = summary_of(expected_items=3)

    assert found.items == Items(expected=3, ok=0, failed=0, missing=3, truncated=0, filtered=0, refused=0)
    assert found.headline == "INCONCLUSIVE: 0 of 3 answered (0.0 %), below the 95 % asked for"
    assert (found.failures, found.latency) == ({}, {"rtt_s": None, "ttft_s": None})


def test_repeats_are_clustered_and_give_pass_at_k():
    """With repeats the interval is by item, and pass@k averages over the items with k verdicts."""
    verdicts = {0: [True, False, False, False], 1: [True, True, True, True], 2: [False, False]}
    rows = [answer(i, right, repeat=r) for i, repeats in verdicts.items() for r, right in enumerate(repeats)]

    found = summary_of(*rows, failure(2, repeat=2), expected_items=3, repeats=4, coverage=0.5)

    assert found.items.expected == 12
    assert found.items.missing == 1
    assert found.accuracy is not None
    assert found.accuracy.method == "clustered by item"
    correct, items = pa.array([r["correct"] for r in rows]), pa.array([r["item_index"] for r in rows])
    assert (found.accuracy.low, found.accuracy.high) == clustered(
        correct.to_numpy(zero_copy_only=False), items.to_numpy()
    )
    assert found.accuracy.pass_at_k == pytest.approx({1: (0.25 + 1 + 0) / 3, 2: (0.5 + 1 + 0) / 3, 4: (1 + 1) / 2})


def test_partial_credit_is_kept_apart_from_accuracy():
    """Half a score is not a right answer; the mean score shows it."""
    found = summary_of(answer(0), answer(1, False, score=0.5), expected_items=2).accuracy

    assert found is not None
    assert (found.accuracy, found.mean_score) == (0.5, 0.75)


def test_categories_have_their_own_counts_and_bounds():
    """Each category is summed up like a run when it is known how many items it has."""
    rows = [answer(0, category="b"), answer(1, False, category="b"), failure(2, category="a")]

    found = summary_of(*rows, expected_items=6, expected_by_category={"a": 2, "b": 3, "c": 1})

    a, b, c = found.categories
    assert (a.name, a.items.expected, a.items.failed, a.items.missing, a.accuracy) == ("a", 2, 1, 1, None)
    assert b.accuracy is not None
    assert (b.items.missing, b.accuracy.accuracy, b.accuracy.worst) == (1, 0.5, 1 / 3)
    assert (c.name, c.items.ok, c.items.missing) == ("c", 0, 1)


def test_categories_of_unknown_size_claim_no_bounds():
    """Without the sizes of the categories nothing is said about what is missing there."""
    found = summary_of(answer(0, category="a"), answer(1, category="b"), expected_items=3)

    a = found.categories[0]
    assert (a.items.expected, a.items.missing) == (None, None)
    assert a.accuracy is not None
    assert (a.accuracy.worst, a.accuracy.best) == (None, None)


def test_failures_are_counted_by_kind():
    """The most frequent kind comes first; a failure without a kind is unknown, not lost."""
    found = summary_of(
        failure(0, "timeout"), failure(1, "bad_body"), failure(2, "timeout"), failure(3, None), expected_items=4
    )

    assert list(found.failures.items()) == [("timeout", 2), ("bad_body", 1), ("unknown", 1)]


def test_latency_is_over_answers_only():
    """What a failed attempt took is no latency of an answer, and a missing first token is no zero."""
    rows = [answer(i, rtt_s=float(i), ttft_s=None) for i in range(101)]

    found = summary_of(*rows, failure(101, rtt_s=1e6), expected_items=102)

    assert found.latency == {"rtt_s": Quantiles(count=101, p50=50.0, p90=90.0, p99=99.0), "ttft_s": None}


def test_tokens_are_summed_and_unknown_usage_is_told():
    """Answers without a usage block add nothing and are counted apart."""
    silent = answer(1, prompt_tokens=0, output_tokens=0, cached_tokens=0, usage_source="none")

    found = summary_of(answer(0), silent, failure(2), expected_items=3)

    assert found.tokens == Tokens(prompt=10, output=20, cached=4, uncounted=1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([answer(0), answer(0, generation=1)], "1 results occur more than once"),
        ([answer(2)], "outside the run of 2 items and 1 repeats"),
        ([answer(0, repeat=1)], "outside the run"),
        ([answer(-1)], "outside the run"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, message):
    """A result counted twice or from elsewhere is a broken store, not a number."""
    with pytest.raises(StateError, match=message):
        summary_of(*rows, expected_items=2)


def test_a_category_cannot_have_more_results_than_items():
    """Sizes that do not fit the rows are refused instead of giving a negative count."""
    with pytest.raises(StateError, match="category 'a' has 2 results, but only 1 are expected"):
        summary_of(answer(0, category="a"), answer(1, category="a"), expected_items=2, expected_by_category={"a": 1})


def test_to_dict_survives_json():
    """What goes into summary.json comes back equal, with the keys that tools read."""
    rows = [answer(i, i == 0, repeat=r, category="x") for i in range(2) for r in range(2)]

    found = summary_of(*rows, failure(2, category="y"), expected_items=3, repeats=2, coverage=0.5).to_dict()

    assert json.loads(json.dumps(found)) == found
    assert set(found) == {"headline", "items", "score", "categories", "failures", "latency", "tokens"}
    assert found["items"] | {"expected": 6, "ok": 4, "failed": 1, "missing": 1} == found["items"]
    assert found["score"]["pass_at_k"] == {"1": 0.5, "2": 0.5}
    assert found["score"]["over_all"] == found["score"]["worst"] == 2 / 6
    assert set(found["score"]["interval"]) == {"low", "high", "method", "confidence"}


def test_dictionary_encoded_columns_are_read():
    """Columns that Parquet gave back as dictionaries count the same."""
    plain = table(answer(0, category="a"), failure(1, category="b"))
    encoded = plain
    for name in ("status", "category", "error_kind", "usage_source"):
        encoded = encoded.set_column(encoded.schema.get_field_index(name), name, encoded[name].dictionary_encode())

    assert summarise(encoded, expected_items=2) == summarise(plain, expected_items=2)


@pytest.mark.parametrize(
    ("generations", "seen"),
    [
        ([("ok", 0)], 0),
        ([("failed", 0), ("ok", 1)], 1),
        ([("ok", 0), ("failed", 1)], 0),
        ([("failed", 0), ("failed", 1)], 1),
        ([("ok", 0), ("ok", 2), ("failed", 3)], 2),
        ([("truncated", 0), ("failed", 1)], 0),
    ],
)
def test_newest_answer_is_seen(generations, seen):
    """The newest answer wins, whatever failed after it; without an answer, the newest failure."""
    rows = [answer(0, status=status, generation=g) for status, g in generations]

    assert select_newest(table(*rows))["generation"].to_pylist() == [seen]


keys = st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 3))


@given(st.dictionaries(keys, st.sampled_from(["ok", "truncated", "failed"]), max_size=40), st.randoms())
def test_selection_agrees_with_the_rule_said_plainly(statuses, rng):
    """One row a result, sorted, the greatest by (is an answer, generation), in whatever order the rows came."""
    rows = [answer(i, repeat=r, generation=g, status=s) for (i, r, g), s in statuses.items()]
    rng.shuffle(rows)

    chosen = select_newest(table(*rows)).select(["item_index", "repeat", "generation"]).to_pylist()

    best: dict[tuple[int, int], tuple[bool, int]] = {}
    for (i, r, g), s in statuses.items():
        best[i, r] = max(best.get((i, r), (False, -1)), (s != "failed", g))
    wanted = [{"item_index": i, "repeat": r, "generation": best[i, r][1]} for i, r in sorted(best)]
    assert chosen == wanted


def test_table_is_aligned_and_plain():
    """Every line has the columns at the same place, the last is for all, and no control code gets through."""
    rows = [answer(i, i % 2 == 0, category="sums") for i in range(4)]
    rows += [failure(4, category="\x1b[31mred\n")]

    text = format_table(summary_of(*rows, expected_items=6, expected_by_category={"sums": 4, "\x1b[31mred\n": 2}))

    assert text.splitlines() == [
        "category   n  ok  failed  missing  accuracy   95 % interval",
        "?[31mred?  2   0       1        1         -               -",
        "sums       4   4       0        0     0.500  [0.150, 0.850]",
        "all        6   4       1        1     0.500  [0.150, 0.850]",
    ]


def test_table_cuts_long_names_and_admits_what_it_does_not_know():
    """A long name is cut, an empty one is named, an unknown count is a dash."""
    text = format_table(summary_of(answer(0, category="x" * 60), answer(1), expected_items=3))

    nameless, long, every = text.splitlines()[1:]
    assert long.split()[0] == "x" * 39 + "…"
    assert nameless.split()[:5] == ["(none)", "1", "1", "0", "-"]
    assert every.split()[:5] == ["all", "3", "2", "0", "1"]
