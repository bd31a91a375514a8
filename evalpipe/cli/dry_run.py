"""`evalpipe run --dry-run`: what would be sent, without sending anything or making a folder."""

from __future__ import annotations

import json
from typing import Any

from evalpipe.config import Config
from evalpipe.data import open_dataset
from evalpipe.prompt import Prompter, estimate_tokens
from evalpipe.records import WorkItem
from evalpipe.runtime.session import check_settings

SHOWN_PROMPTS = 3
SHOWN_CHARS = 1_200
RATES = (1, 10, 100)


def dry_run(config: Config, *, as_json: bool) -> None:
    """Print items, tokens, price, expected time and three rendered prompts. Raises ConfigError, DataError."""
    check_settings(config)
    with open_dataset(config.dataset) as dataset:
        prompter = Prompter(config.prompt)
        prompter.validate(dataset.columns)
        prompts = [prompter.request(WorkItem(dataset.example(int(index)))).prompt for index in dataset.order]
    requests = len(prompts) * config.run.repeats
    prompt_tokens = sum(map(estimate_tokens, prompts)) * config.run.repeats
    body: dict[str, Any] = {
        "items": len(prompts),
        "repeats": config.run.repeats,
        "requests": requests,
        "prompt_tokens_estimate": prompt_tokens,
        "output_tokens_at_most": requests * config.sampling.max_tokens,
        "price_at_most": price(config, prompt_tokens, requests * config.sampling.max_tokens),
        "prompts": prompts[:SHOWN_PROMPTS],
    }
    print(json.dumps(body, indent=2) if as_json else _text(config, body, requests))


def price(config: Config, prompt_tokens: int, output_tokens: int) -> float | None:
    """Return what that many tokens cost, in the currency of endpoint.price_*; None where no price is set."""
    into, out = config.endpoint.price_input, config.endpoint.price_output
    if into is None and out is None:
        return None
    return ((into or 0.0) * prompt_tokens + (out or 0.0) * output_tokens) / 1e6


def _text(config: Config, body: dict[str, Any], requests: int) -> str:
    cost = body["price_at_most"]
    repeats = f" x {body['repeats']} repeats" if config.run.repeats > 1 else ""
    times = ", ".join(f"{requests / rate / 60:.1f} min at {rate} answers/s" for rate in RATES)
    lines = [
        f"items: {body['items']}{repeats} = {requests} requests to {config.endpoint.model or 'the served model'}"
        f" at {config.endpoint.base_url or 'OPENAI_BASE_URL'}",
        f"tokens: about {body['prompt_tokens_estimate']:,} in, at most {body['output_tokens_at_most']:,} out",
        "price: unknown (set endpoint.price_input and price_output, per million tokens)"
        if cost is None
        else f"price: at most {cost:,.2f}",
        f"time: {times}",
    ]
    for number, prompt in enumerate(body["prompts"], 1):
        cut = prompt if len(prompt) <= SHOWN_CHARS else f"{prompt[:SHOWN_CHARS]} .. ({len(prompt):,} characters)"
        lines += ["", f"--- prompt {number} ---", cut]
    return "\n".join(lines)
