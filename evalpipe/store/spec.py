"""spec.json: what a run is about, written once. A run may be resumed only by a driver that means the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from evalpipe.errors import StateError
from evalpipe.store.entry import seal, unseal
from evalpipe.store.objects import ObjectStore, create
from evalpipe.store.schema import SCHEMA_VERSION

KEY = "spec.json"
_SHOWN = 60  # characters of a value in a message: enough to tell two apart, too few for a prompt


@dataclass(frozen=True, slots=True)
class Spec:
    """What makes two runs the same.

    semantic: Config.semantic(). fingerprint: of the dataset's ids and content. items: number of items; item_index runs
    from 0 to items - 1. versions: of the packages that began the run; told, never compared.
    """

    semantic: Mapping[str, Any]
    fingerprint: str
    items: int
    repeats: int = 1
    schema_version: int = SCHEMA_VERSION
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Identity of the run, in each claim of the log and in each file of rows."""
        text = json.dumps(self._compared(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def differences(self, other: Spec) -> list[str]:
        """Return one line for each setting in which other differs: "name: old -> new"."""
        old, new = (dict(_flatten(json.loads(json.dumps(spec._compared())))) for spec in (self, other))
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        return [f"{name}: {_show(old, name)} -> {_show(new, name)}" for name in names]

    def to_bytes(self) -> bytes:
        return seal({**self._compared(), "versions": dict(self.versions)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Spec:
        """Raises StateError when the bytes are not what was written."""
        body = unseal(data, key=KEY)
        try:
            return cls(**body)
        except TypeError as error:
            raise StateError(f"{KEY} was written by another version of evalpipe: {error}") from error

    def _compared(self) -> dict[str, Any]:
        return {
            "semantic": dict(self.semantic),
            "fingerprint": self.fingerprint,
            "items": self.items,
            "repeats": self.repeats,
            "schema_version": self.schema_version,
        }


def write_spec(store: ObjectStore, spec: Spec) -> Spec:
    """Write the spec if the run has none, and return the one it has. Raises StateError when that one differs."""
    if create(store, KEY, spec.to_bytes()):
        return spec
    stored = read_spec(store)
    changed = stored.differences(spec)
    if changed:
        lines = "\n  ".join(changed)
        raise StateError(
            f"{store.url} holds a run with other settings (stored -> now):\n  {lines}\n"
            "use the stored settings, or another run name"
        )
    return stored


def read_spec(store: ObjectStore) -> Spec:
    """Raises NotFound when no run began there, StateError when the file is damaged."""
    return Spec.from_bytes(store.get(KEY))


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _show(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "(not set)"
    text = json.dumps(values[name], ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.. ({len(text)} characters)"
