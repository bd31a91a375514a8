"""What a load test asks: made-up prompts of a set length, or those of a dataset over and over."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from evalpipe.config import Config
from evalpipe.data import Dataset
from evalpipe.prompt import CHARS_PER_TOKEN, Prompter
from evalpipe.records import Key, Request, WorkItem

#: Gives the n-th request of a test, n from 0. The same n is the same request.
Prompts = Callable[[int], Request]

_TEXT = """
river lamp stone garden winter letter bridge candle market forest silver window harbour engine meadow signal copper
thread island motor paper anchor valley mirror basket tunnel feather ladder orchard pepper saddle violin
"""
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Random words of about `tokens` tokens (4 characters each), lognormal with `sigma` where that is not 0.

    No two prompts begin alike, so that no cache of prefixes makes the server look faster than it is.
    """

    tokens: int = 512
    sigma: float = 0.0
    seed: int = 0

    def __call__(self, number: int) -> Request:
        rng = random.Random(f"prompt/{self.seed}/{number}")
        length = max(round(self.tokens * math.exp(self.sigma * rng.gauss(0, 1))), 8) * CHARS_PER_TOKEN
        text = f"{self.seed}.{number}: tell a long story with these words."
        while len(text) < length:
            text += f" {rng.choice(_WORDS)}"
        text = text[:length]
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Request(Key(number), f"load-{number}", ({"role": "user", "content": text},), text, digest)


def from_dataset(dataset: Dataset, config: Config) -> Prompts:
    """Return the prompts of an open dataset in its order, from the start again after the last."""
    prompter = Prompter(config.prompt)
    prompter.validate(dataset.columns)
    order = dataset.order

    def prompt(number: int) -> Request:
        return prompter.request(WorkItem(dataset.example(int(order[number % len(order)]))))

    return prompt
