"""Do the first items all fail alike? Then it is the request that is wrong, not the items: stop before paying for more.

Pure; the driver counts. Not for a run whose owed items have failed before (`resume --failed`): there it is no news.
"""

from __future__ import annotations

from collections.abc import Mapping

FIRST, SOON = 8, 50
SOON_SHARE = 0.95


class FirstItems:
    """Looks at the first 8 results, and once more at the first 50 or so; after that it has nothing to say."""

    def __init__(self) -> None:
        self._is_over = False

    def judge(self, *, answered: int, failures: Mapping[str, int]) -> str | None:
        """Return the kind of failure for which the run should stop, None to go on. Call with totals of this driver.

        answered: items with an answer. failures: by kind, items stored as failed.
        All of the first 8 failed alike, or more than 95 % of the first 50 failed: then the most common kind.
        """
        failed = sum(failures.values())
        if self._is_over or failed == 0 or answered + failed < FIRST:
            return None
        most = max(failures, key=lambda kind: failures[kind])
        if answered + failed >= SOON:
            self._is_over = True
            return most if failed > SOON_SHARE * (answered + failed) else None
        return most if answered == 0 and failures[most] == failed else None
