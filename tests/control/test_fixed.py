"""The constant law."""

from evalpipe.control.build import build_law
from evalpipe.control.observation import Observation, Outcome, Sample


def test_fixed_never_moves():
    """Neither success nor rejection moves a fixed limit, and no cut is counted."""
    law = build_law("fixed", start=64)

    law.observe(Observation(in_flight=64, in_flight_peak=64, samples=(Sample(Outcome.OK, 0.1),) * 500))
    law.observe(Observation(samples=(Sample(Outcome.DROPPED, 0.1, kind="rate_limited"),) * 20))

    assert law.decide(now=1.0) is None
    assert (law.state.limit, law.state.epoch) == (64.0, 0)
