"""The text and the JSON of a race."""

from __future__ import annotations

import json

from evalpipe.report.race import WIDTH, format_race, remarks, to_dict
from evalpipe.sim.measure import Heat
from evalpipe.sim.race import BEST_FIXED, BestFixed, RaceRow, RaceTable

HEAT = Heat(
    makespan_s=206.54,
    rejections=3.0,
    p50_s=0.393,
    p99_s=0.56,
    p99_per_work_s=0.4,
    variance=2.44,
    cv=0.17,
    littles_in_flight=3.9,
    mean_in_flight=3.9,
    unfinished=0.0,
)
COURSE = "cliff-shared, work spread 0.15"


def table(suite: str = "published") -> RaceTable:
    """A race of one course."""
    labels = {
        "gradient-published": 11.47,
        "gradient-published, normalise: total": 1.2,
        BEST_FIXED: 1.0,
    }
    rows = tuple(RaceRow(COURSE, label, ratio, ratio, HEAT) for label, ratio in labels.items())
    return RaceTable(suite, (0, 1), (2_000,), (BestFixed(COURSE, 42, 22),), rows)


def test_numbers_stand_in_their_columns():
    """Latencies in milliseconds, ratios with two digits, Little's law beside the time average."""
    text = format_race(table())

    line = next(line for line in text.splitlines() if line.startswith("  gradient-published  "))
    assert line.split()[1:] == ["206.5", "11.47", "3", "393", "560", "400", "2.4", "0.17", "3.9", "3.9", "0"]
    assert "  best fixed limit: 42 " in text


def test_text_fits_120_columns_and_cuts_no_name():
    """No line is longer than 120 characters, and the longest label stands whole."""
    text = format_race(table())

    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert "gradient-published, normalise: total " in text
    assert f"{COURSE}; 2,000 jobs " in text


def test_the_publications_figures_stand_beside_ours():
    """Its three rows, Little's law of each, and what does not add up: 10 in flight, not 45; 33.5, not 42."""
    text = " ".join(format_race(table()).split())

    assert "adaptive (gradient) 98.4 - 0 480 850 - 8.2 - 9.8 45 -" in text
    assert "fixed 64 184.2 - 382 2850 6400 - 412.5 - 30.9 64 -" in text
    assert "are 10 requests in flight, at most 17 by its P99, not 45" in text
    assert "48 x 400/600 + 1.5 = 33.5" in text


def test_failure_of_the_plain_form_is_said_with_our_numbers():
    """The remark names the course, the seconds and the ratio; a race in which nothing failed says nothing of it."""
    said = remarks(table())

    assert f"on {COURSE} it takes 207 s, 11.5 times the best fixed limit, with 3.9 requests in flight" in said[0]
    assert "within 1.20 times the best fixed limit, with 3 rejections" in said[1]


def test_other_suites_are_not_compared_with_the_publication():
    """Only the published suite carries the publication's figures."""
    assert "publication" not in format_race(table("laws"))
    assert "published" not in to_dict(table("laws"))


def test_dict_is_json():
    """Every value survives JSON, the publication's rows and our remarks included."""
    data = json.loads(json.dumps(to_dict(table())))

    assert data["rows"][0]["heat"]["makespan_s"] == 206.54
    assert data["best"] == [{"course": COURSE, "limit": 42, "tried": 22}]
    assert [row["label"] for row in data["published"]] == ["fixed 64", "AIMD", "adaptive (gradient)"]
    assert len(data["doubts"]) == 3
    assert len(data["remarks"]) == 2
