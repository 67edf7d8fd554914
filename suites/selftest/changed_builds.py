"""Makes builds of Kafka that differ from a release in some classes."""

from __future__ import annotations

import os
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

Change = Callable[[str, bytes], tuple[str, bytes] | None]
"""From the name and the content of an entry of a jar to the new ones; None takes the entry out."""

_RETURN = b"\xb1"
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
"""Bytes of a constant after its tag (Java Virtual Machine Specification, 4.4); 1 is a text with its own length."""


def build_from(home: Path, jars: Iterable[Path], *, change: Change, concerns: Callable[[Path], bool]) -> Path:
    """Make a build of these jars in a new folder, which brokers may read; returns the folder, for ``--kafka-home``.

    :param change: applied to each entry of the jars that ``concerns`` selects; the other jars stay as they are
    """
    libs = home / "libs"
    libs.mkdir(parents=True)
    for jar in jars:
        made = libs / jar.name
        if not concerns(jar):
            try:
                os.link(jar, made)
            except OSError:
                shutil.copyfile(jar, made)
            continue
        with zipfile.ZipFile(jar) as source, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as target:
            for name in source.namelist():
                if not name.endswith("/") and (entry := change(name, source.read(name))):
                    target.writestr(*entry)
    for folder in (home, libs):
        folder.chmod(0o755)
    return home


def has_entry(jar: Path, name: str) -> bool:
    """Whether the jar has an entry of this name."""
    with zipfile.ZipFile(jar) as opened:
        return name in opened.namelist()


def without_body(content: bytes, method: str) -> bytes:
    """Return a class whose method of this name does nothing.

    :param content: a class file
    :raises ValueError: it has no such method, several, or one that returns something
    """
    names, at = _texts(content)
    at += 6  # access, this class, super class
    [count] = struct.unpack_from(">H", content, at)
    at += 2 + 2 * count
    at = _skip_fields(content, at)  # fields
    [count] = struct.unpack_from(">H", content, at)
    at += 2
    bodies: list[tuple[int, int]] = []
    for _ in range(count):
        _, name, kind, attributes = struct.unpack_from(">4H", content, at)
        at += 8
        for _ in range(attributes):
            attribute, size = struct.unpack_from(">HI", content, at)
            if (names[name], names[attribute]) == (method, "Code"):
                if not names[kind].endswith(")V"):
                    raise ValueError(f"{method} returns something: {names[kind]}")
                bodies.append((at, size))
            at += 6 + size
    if len(bodies) != 1:
        raise ValueError(f"there are {len(bodies)} methods {method} with code")
    [(at, size)] = bodies
    stack_and_locals = content[at + 6 : at + 10]
    code = stack_and_locals + struct.pack(">I", 1) + _RETURN + struct.pack(">2H", 0, 0)  # no handlers, no attributes
    return content[: at + 2] + struct.pack(">I", len(code)) + code + content[at + 6 + size :]


def _texts(content: bytes) -> tuple[dict[int, str], int]:
    """Return the texts in the constant pool of a class by their numbers, and the offset behind the pool."""
    [count] = struct.unpack_from(">H", content, 8)
    texts: dict[int, str] = {}
    number, at = 1, 10
    while number < count:
        tag = content[at]
        if tag == 1:
            [size] = struct.unpack_from(">H", content, at + 1)
            texts[number] = content[at + 3 : at + 3 + size].decode(errors="replace")
            at += 3 + size
        else:
            at += 1 + _SIZES[tag]
        number += 2 if tag in (5, 6) else 1  # a long or a double has two numbers
    return texts, at


def _skip_fields(content: bytes, at: int) -> int:
    """Return the offset behind the fields of a class."""
    [count] = struct.unpack_from(">H", content, at)
    at += 2
    for _ in range(count):
        [attributes] = struct.unpack_from(">H", content, at + 6)
        at += 8
        for _ in range(attributes):
            [size] = struct.unpack_from(">I", content, at + 2)
            at += 6 + size
    return at
