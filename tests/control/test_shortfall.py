"""Shortfall: a collapse is seen within a tick or two on an even server, and not seen where there is none."""

from __future__ import annotations

import random

from evalpipe.control.observation import FirstTokens, Observation
from evalpipe.control.shortfall import Shortfall, ShortfallState
from evalpipe.control.window import Beat, beat_of

RATE = 100.0  # tokens/s of each of 40 streams


def tick(share: float = 1.0, *, streams: int = 40, waiting: int = 0, begun: int = 0, prefill: int = 0) -> Beat:
    """A tenth of a second in which so large a share of the usual tokens came."""
    seen = Observation(
        in_flight=streams + waiting,
        waiting=waiting,
        output_tokens=round(streams * RATE * 0.1 * share),
        prefill_tokens=prefill,
        first_tokens=(FirstTokens(8, begun, 0, 0.1),) if begun else (),
    )
    return beat_of([seen], seconds=0.1)


def watched(*ticks: Beat) -> Shortfall:
    shortfall = Shortfall(ShortfallState())
    for beat in ticks:
        shortfall.observe(beat, may_adapt=True)
    return shortfall


STEADY = [tick()] * 20


def test_an_even_server_that_collapses_is_seen_at_once():
    """At a tenth of its tokens two ticks are enough; one is a pause of anything on the way."""
    assert not watched(*STEADY).is_collapse
    assert not watched(*STEADY, tick(0.1)).is_collapse
    assert watched(*STEADY, *[tick(0.1)] * 2).is_collapse


def test_an_uneven_server_is_given_more_time():
    """Where ticks scatter by half, two of a tenth are chance and a second of them is not."""
    rng = random.Random(1)
    uneven = [tick(rng.uniform(0.3, 1.7)) for _ in range(200)]

    assert not watched(*uneven, *[tick(0.1)] * 2).is_collapse
    assert watched(*uneven, *[tick(0.1)] * 10).is_collapse


def test_scatter_alone_is_no_collapse():
    """Ticks that scatter by a quarter, twice what is measured over HTTP: not once in 3,000, five minutes of them."""
    rng, shortfall = random.Random(2), Shortfall(ShortfallState())
    collapses = 0
    for _ in range(3_000):
        shortfall.observe(tick(rng.gauss(1.0, 0.25)), may_adapt=True)
        collapses += shortfall.is_collapse

    assert collapses == 0


def test_a_small_loss_is_no_collapse_however_long():
    """A fifth less is what a batch that grew costs: it is learned, not feared."""
    assert not watched(*STEADY, *[tick(0.8)] * 100).is_collapse


def test_a_dip_that_mended_raises_the_bar():
    """A server that stuttered for a tick and went on must do worse than that to be cut."""
    stutter = [tick(0.0), tick(1.9), *STEADY]
    shortfall = watched(*STEADY, *stutter, tick(0.1))

    assert not shortfall.is_collapse
    assert watched(*STEADY, *stutter, *[tick(0.1)] * 4).is_collapse


def test_prompts_under_way_are_allowed_for():
    """Where prompts take their time, a few that wait explain a tick with few tokens; with none waiting it is a loss."""
    mixed = [tick(0.5, begun=1, prefill=1_000) if i % 5 == 0 else tick() for i in range(200)]

    assert watched(*mixed).pace.prompt_token_s > 2e-5
    assert not watched(*mixed, tick(0.2, waiting=4)).is_collapse
    assert watched(*mixed, *[tick(0.2)] * 3).is_collapse


def test_a_lasting_shortfall_is_the_new_pace():
    """After three seconds at a quarter the server is slower, and no longer in collapse; while draining it is not."""
    slow = [tick(0.25)] * 40

    assert not watched(*STEADY, *slow).is_collapse
    assert watched(*STEADY, *slow).is_mended
    draining = watched(*STEADY)
    for beat in slow:
        draining.observe(beat, may_adapt=False)
    assert not draining.is_mended


def test_a_server_that_delivers_nothing_has_no_new_pace():
    """Silence for a minute does not become the measure."""
    assert not watched(*STEADY, *[tick(0.0)] * 600).is_mended


def test_what_was_acted_on_is_forgotten():
    """After a cut a new collapse is a new count, and a false alarm makes it harder."""
    shortfall = watched(*STEADY, tick(0.1))
    shortfall.note_false_alarm()

    assert not shortfall.is_collapse
    shortfall.observe(tick(0.1), may_adapt=True)
    assert not shortfall.is_collapse


def test_nothing_is_judged_before_anything_is_known():
    """The first half second of a run is never a collapse."""
    shortfall = Shortfall(ShortfallState())
    for beat in [tick(), tick(0.1), tick(0.0), tick(0.0), tick(0.0)]:
        shortfall.observe(beat, may_adapt=True)

        assert not shortfall.is_collapse
