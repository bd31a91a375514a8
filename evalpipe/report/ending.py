"""What stands on the screen when a run ends: the scores, the speed and why it was not higher, where everything is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from evalpipe.report.summary import Summary, format_table


def ending(body: Mapping[str, Any], summary: Summary) -> str:
    """Return the closing text. body: summary.json of the run."""
    lines = [format_table(summary), "", summary.headline, items_line(body["items"])]
    if "rate" in body:
        lines += [speed_line(body), f"bound by: {body['bound_by']}"]
    url = body["url"]
    if body["failures"]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in body["failures"].items())
        lines.append(f"failed: {kinds}; evalpipe show {shlex.quote(url)} --failed")
    page = f"  page: {url}/report.html" if "rate" in body else ""
    lines += [f"results: {url}/parts/  summary: {url}/summary.json{page}"]
    if body["why"]:
        lines.append(f"why it ended (exit {body['exit_code']}): {body['why']}")
    if body["items"]["missing"]:
        lines.append(f"go on with: evalpipe resume {shlex.quote(url)}")
    return "\n".join(lines)


def items_line(items: Mapping[str, Any]) -> str:
    shown = [f"{items['ok']} answered", f"{items['failed']} failed", f"{items['missing']} missing"]
    shown += [f"{items[name]} {name}" for name in ("truncated", "filtered", "refused") if items[name]]
    return f"{items['expected']} items: {', '.join(shown)}"


def speed_line(body: Mapping[str, Any]) -> str:
    rate, limit = body["rate"], body["limit"]
    gradient = "-" if limit["gradient"] is None else f"{limit['gradient']:.2f}"
    return (
        f"{rate['items_per_s']:.1f} items/s, {rate['output_tokens_per_s']:,.0f} output tok/s over"
        f" {rate['elapsed_s']:.0f} s; limit {limit['final']:.0f} at the end, {limit['mean']:.0f} on average"
        f" ({limit['law']}), {limit['mean_in_flight']:.0f} in flight, gradient {gradient}, {rate['retries']} retries"
    )
