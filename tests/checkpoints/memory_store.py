"""A store in memory that keeps the protocol, and that a test can damage."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from millstream.stores.framing import damage_of, frame, unframe
from millstream.stores.store import Damage, check_key


@dataclass
class MemoryStore:
    """Values with checksums in a dictionary; its places are called ``memory``."""

    held: dict[str, bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, items: Mapping[str, bytes]) -> None:
        with self.lock:
            self.held.update({check_key(key): frame(key, value) for key, value in items.items()})

    def put_if_absent(self, key: str, value: bytes) -> bool:
        with self.lock:
            absent = check_key(key) not in self.held
            self.held.setdefault(key, frame(key, value))
            return absent

    def get(self, keys: Iterable[str]) -> dict[str, bytes]:
        with self.lock:
            found = {key: self.held[key] for key in keys if check_key(key) in self.held}
        return {key: unframe(key, data, "memory") for key, data in found.items()}

    def scan(self, prefix: str = "") -> list[str]:
        with self.lock:
            return sorted((key for key in self.held if key.startswith(prefix)), key=str.encode)

    def delete(self, keys: Iterable[str]) -> None:
        with self.lock:
            for key in keys:
                self.held.pop(check_key(key), None)

    def verify(self) -> Iterator[Damage]:
        with self.lock:
            held = dict(self.held)
        for key, data in held.items():
            damage = damage_of(key, data, "memory")
            if damage is not None:
                yield damage

    def close(self) -> None:
        pass

    def flip(self, key: str) -> None:
        """Flip a bit at the end of a value."""
        data = bytearray(self.held[key])
        data[-1] ^= 1
        self.held[key] = bytes(data)
