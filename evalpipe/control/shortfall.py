"""Do tokens come as fast as they should at this level? The signal that may cut without any queue.

Time that the delivered work does not explain (control/pace.py) adds up; an efficient tick takes it down again. How much
of it is a collapse is not a constant: scatter of the ticks raises the bar, and so do dips that mend by themselves (a
preemption, a long prompt). On a server that flows evenly two ticks of collapse are enough; on one that stutters it
takes more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from evalpipe.control.pace import Pace, PaceState
from evalpipe.control.window import Beat, Window

# ticks are learned and judged three at a time: prompts are counted when their first token comes
LOOK_S, LOOK_BEATS = 0.3, 3
EFFICIENT = 0.7  # of a tick explained: what is below adds to the lost time, what is above takes from it
MENDED = 0.85  # of the look explained: the trouble is over
LEAST_S, MOST_S = 0.05, 1.0  # lost time that is a collapse: on the evenest server, on the most uneven one
# Lost time adds up from ticks that scatter, less a drift of 1 - EFFICIENT; it passes a bar by chance with a probability
# of about exp(-2 * drift * bar / variance) (Wald). 8 is once in five minutes of independent ticks; ours make up for
# one another.
CERTAIN = 8.0
REPEATED = 2  # ticks in a row: a single one may be a pause of client, network or server
NOISE_LOOKS = 50.0  # of the mean of the variance
DIP_FACTOR = 1.5  # of the deepest dip that mended by itself
DIP_MEMORY_S = 60.0
ADAPT_S = 3.0  # a shortfall that lasts longer than this is the server's new pace, not the level's fault


@dataclass(slots=True)
class ShortfallState:
    """JSON-able. dip_s: the deepest lost time that mended by itself, forgotten over a minute. prompt_tokens: mean.

    noise_s: variance of lost time a second of it, when tokens came as they should; looks: that it was learned from.
    """

    dip_s: float = 0.0
    noise_s: float = 0.0
    looks: float = 0.0
    prompt_tokens: float = 0.0
    pace: PaceState = field(default_factory=PaceState)


class Shortfall:
    """Judge each tick against the pace, and teach the pace from those that were as they should be."""

    def __init__(self, state: ShortfallState) -> None:
        self.state = state
        self.pace = Pace(state.pace)
        self.look = Window(LOOK_S, least=LOOK_BEATS)
        self.lost_s = 0.0
        self._deepest_s = 0.0
        self._losing = 0  # ticks in a row that lost time
        self._lasted_s = 0.0
        self._waiting = self._waiting_before = 0.0

    def observe(self, beat: Beat, *, may_adapt: bool) -> None:
        """may_adapt: the level is what the law wants, so a lasting shortfall is not the level's."""
        self.look.add(beat)
        self._note_prompts(beat)
        if not self.look.is_full:
            return
        if self.pace.is_known:
            self._add_lost(beat)
        if not self.pace.is_known or self.share >= EFFICIENT:
            self._lasted_s = 0.0
            self._note_noise()
            self.pace.learn(self.look)
        elif may_adapt:
            self._adapt(beat)

    @property
    def share(self) -> float:
        """Share of the last look that its work explains; 1 before the pace is known."""
        flow_s = sum(beat.flow_s for beat in self.look)
        return self.pace.explained_s(self.look) / flow_s if self.pace.is_known and flow_s > 0 else 1.0

    @property
    def is_efficient(self) -> bool:
        """The last look was full and nothing to worry about."""
        return self.look.is_full and self.share >= EFFICIENT

    @property
    def is_mended(self) -> bool:
        return self.share >= MENDED

    @property
    def is_collapse(self) -> bool:
        """More time was lost than dips and the prompts under way account for."""
        chance_s = CERTAIN * self.state.noise_s / (2 * (1 - EFFICIENT))
        bar_s = min(max(LEAST_S, chance_s, DIP_FACTOR * self.state.dip_s), MOST_S)
        waiting = max(self._waiting, self._waiting_before)
        under_way_s = self.pace.prompt_token_s * self.state.prompt_tokens * waiting
        return self._losing >= REPEATED and self.lost_s > bar_s + under_way_s

    @property
    def elasticity(self) -> float:
        """How tokens/s grow with what is in flight, at the level of the last look."""
        streams = [beat.streams for beat in self.look]
        return self.pace.elasticity(sum(streams) / len(streams)) if streams else 1.0

    def forget(self) -> None:
        """Begin a new count: what was lost so far was acted on."""
        self.lost_s = self._deepest_s = self._lasted_s = 0.0
        self._losing = 0

    def note_false_alarm(self) -> None:
        self.state.dip_s = max(DIP_FACTOR * self.state.dip_s, LEAST_S)
        self.forget()

    def accept(self) -> None:
        """Take what is delivered now for the server's pace; a server that delivers nothing has none."""
        if self.share > 0.0:
            self.pace.slow_down(1.0 / self.share)
        self.forget()

    def _add_lost(self, beat: Beat) -> None:
        before_s = self.lost_s
        self.lost_s = max(before_s + EFFICIENT * beat.flow_s - self.pace.explained_s([beat]), 0.0)
        self._losing = self._losing + 1 if self.lost_s > before_s else 0
        self._deepest_s = max(self._deepest_s, self.lost_s)
        self.state.dip_s *= max(1.0 - beat.seconds / DIP_MEMORY_S, 0.0)
        if self.lost_s == 0.0 < before_s:
            self.state.dip_s, self._deepest_s = max(self.state.dip_s, self._deepest_s), 0.0

    def _note_noise(self) -> None:
        state, flow_s = self.state, sum(beat.flow_s for beat in self.look)
        if self.pace.is_known and flow_s > 0:
            lost_s = flow_s - self.pace.explained_s(self.look)
            state.looks = min(state.looks + 1, NOISE_LOOKS)
            state.noise_s += (lost_s * lost_s / flow_s - state.noise_s) / state.looks

    def _adapt(self, beat: Beat) -> None:
        """A server that stays slow after the cut has become slower: believe it, once something flows again."""
        self._lasted_s += beat.seconds
        if self._lasted_s > ADAPT_S:
            self.accept()

    def _note_prompts(self, beat: Beat) -> None:
        self._waiting_before, self._waiting = self._waiting, beat.waiting
        if beat.begun:
            weight = 0.05 * beat.begun / (1.0 + 0.05 * beat.begun)  # the mean of about the last twenty
            self.state.prompt_tokens += weight * (beat.prefill / beat.begun - self.state.prompt_tokens)
