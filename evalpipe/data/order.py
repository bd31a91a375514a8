"""Which items run, and in what order. Pure numpy, and no random generator of numpy's.

Chance comes from hashes of the ids and the seed: the same on every version and machine, so a resumed run selects the
same items, and adding rows to a dataset does not reshuffle the others against each other.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def choose_order(
    id_hashes: Hashes, categories: NDArray[np.int32], *, limit: int | None, shuffle: bool, seed: int
) -> Indices:
    """Return the item indices to run: int64[min(limit, n)], shuffled or in source order.

    id_hashes: uint64[n], one per item; categories: int32[n], codes from 0.
    """
    chosen = np.arange(len(id_hashes), dtype=np.int64)
    if limit is not None and limit < len(id_hashes):
        chosen = _stratified(_scramble(id_hashes, seed=seed, salt="limit"), categories, limit=limit, seed=seed)
    if shuffle:
        chosen = chosen[np.argsort(_scramble(id_hashes[chosen], seed=seed, salt="order"), kind="stable")]
    return chosen


def _stratified(ranks: Hashes, categories: NDArray[np.int32], *, limit: int, seed: int) -> Indices:
    """Take every (n / limit)-th item of the list sorted by category, then rank, from a random start.

    Systematic sampling: each item is as likely as any other (limit / n), and each category gets its exact share,
    rounded down or up by chance. Largest remainders would never take an item of a rare category.
    """
    count = len(ranks)
    start = _key(seed, "start") % count
    steps = (start + np.arange(limit, dtype=np.int64) * count) // limit
    return np.sort(np.lexsort((ranks, categories))[steps]).astype(np.int64)


def _scramble(hashes: Hashes, *, seed: int, salt: str) -> Hashes:
    """Mix a seed into hashes: the finaliser of splitmix64 (Steele, Lea and Flood 2014). Wraps modulo 2**64."""
    mixed = hashes ^ np.uint64(_key(seed, salt))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _key(seed: int, salt: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{salt}:{seed}".encode(), digest_size=8).digest(), "little")
