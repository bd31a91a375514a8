"""Messages between simulated processes: late, lost, doubled, overtaken; a call may lose its reply alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from simulation.scheduler import Process, Scheduler
from simulation.weather import NetworkSetup

TOLD_S = 0.5  # until a caller hears that its call failed
GIVEN_UP_S = 64.0  # until it hears where nothing says so but the loss of the whole node (FACTS)
SLOW_TO_TELL = 0.3  # of the lost calls


class Network:
    """Carries messages. A process that is cut off reaches nobody here; the model server is on another network."""

    def __init__(
        self, scheduler: Scheduler, rng: random.Random, setup: NetworkSetup, *, count: Callable[[str], None]
    ) -> None:
        self._scheduler, self._rng, self._setup, self._count = scheduler, rng, setup, count
        self._cut: dict[Process, float] = {}

    def cut_off(self, process: Process, seconds: float) -> None:
        self._scheduler.note(process.name, f"is cut off for {seconds:.1f} s")
        self._cut[process] = self._scheduler.now + seconds
        process.lost_since = self._scheduler.now

    def cut_for(self, process: Process) -> float:
        """Return for how many seconds more the process reaches nobody."""
        return max(self._cut.get(process, 0.0) - self._scheduler.now, 0.0)

    def send(self, sender: Process, receiver: Process, what: str, deliver: Callable[[], None]) -> bool:
        """Send one message; False when it is lost, which the sender does not know.

        Of those that meet a cut link, half arrive when it is whole again: the kernel repeats them.
        """
        cut_s = max(self.cut_for(sender), self.cut_for(receiver))
        if cut_s and self._rng.random() < 0.5:
            self._scheduler.note(sender.name, f"{what} -> {receiver.name} must wait")
            self._scheduler.after(cut_s, deliver, process=receiver)
            return True
        if cut_s or self._rng.random() < self._setup.lost:
            self._count("lost")
            self._scheduler.note(sender.name, f"{what} -> {receiver.name} is lost")
            return False
        self._carry(receiver, deliver)
        if self._rng.random() < self._setup.doubled:
            self._count("doubled")
            self._carry(receiver, deliver)
        return True

    def call(
        self,
        caller: Process,
        callee: Process,
        what: str,
        *,
        ask: Callable[[Callable[[Any], None]], None],
        on_reply: Callable[[Any], None],
        on_failure: Callable[[], None],
    ) -> None:
        """Call a method: `ask` runs at the callee and is given the way back. Exactly one of the others may follow."""
        is_settled, token = False, object()

        def settle(action: Callable[[], None]) -> None:
            nonlocal is_settled
            if not is_settled:
                is_settled = True
                callee.on_death.pop(token, None)
                action()

        def fail() -> None:
            is_quick = not callee.is_alive or self._rng.random() >= SLOW_TO_TELL
            told_s = TOLD_S if is_quick else GIVEN_UP_S
            self._scheduler.after(told_s, lambda: settle(on_failure), process=caller)

        def answer(value: Any) -> None:
            if not self.send(callee, caller, f"reply to {what}", lambda: settle(lambda: on_reply(value))):
                self._count("lost_reply")
                fail()

        def arrive() -> None:
            ask(answer)

        def on_death() -> None:
            told_s = self.cut_for(callee) + self._rng.uniform(0.0, TOLD_S)
            self._scheduler.after(told_s, lambda: settle(on_failure), process=caller)

        if not callee.is_alive:
            on_death()
            return
        callee.on_death[token] = on_death
        if not self.send(caller, callee, what, arrive):
            fail()

    def _carry(self, receiver: Process, deliver: Callable[[], None]) -> None:
        is_slow = self._rng.random() < self._setup.slow
        if is_slow:
            self._count("slow")
        delay_s = self._rng.uniform(0.0, self._setup.slow_s if is_slow else self._setup.delay_s)
        self._scheduler.after(delay_s, deliver, process=receiver)
