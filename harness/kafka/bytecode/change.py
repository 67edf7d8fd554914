"""One change of one method of a Kafka build."""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.errors import UsageError
from harness.kafka.versions import KafkaVersion, Mode, VersionRange

_KINDS = ("body", "before", "after", "call", "branch", "constant", "sum")
_PARTNERS = {"call": "with_", "branch": "to", "constant": "to_constant"}


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One change of one method, of exactly one kind: body, before, after, call, branch, constant or sum.

    :ivar builds: the range of builds that it is for (:class:`VersionRange`)
    :ivar parameters: the types of the method's parameters; needed if its name is overloaded
    :ivar with_: the source that takes the place of each call, or of call number ``nth``
    :ivar branch: the number of a conditional jump in the bytecode, from 1
    :ivar sum: the number of a sum or difference of whole numbers in the bytecode, from 1; it becomes the other one
    :ivar constant: the number or string whose loads, or load number ``nth``, get another value
    """

    class_: str = msgspec.field(name="class")
    method: str
    builds: str = ""
    modes: tuple[Mode, ...] = tuple(Mode)
    parameters: tuple[str, ...] | None = None
    body: str | None = None
    before: str | None = None
    after: str | None = None
    call: str | None = None
    with_: str | None = msgspec.field(name="with", default=None)
    nth: int | None = None
    branch: int | None = None
    to: Literal["inverted", "always", "never", "other-bound"] | None = None
    sum: int | None = None
    constant: bool | int | float | str | None = None
    to_constant: bool | int | float | str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless it has exactly one kind, with what belongs to that kind only."""
        where = f"the change of {self.class_}.{self.method}"
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"{where} needs one of {', '.join(_KINDS)}, and has {' and '.join(given) or 'none'}")
        for kind, partner in _PARTNERS.items():
            if (kind in given) != (getattr(self, partner) is not None):
                raise ValueError(f"{where}: {kind} and {partner.rstrip('_')} belong together")
        if self.nth is not None and given[0] not in ("call", "constant"):
            raise ValueError(f"{where}: nth is only for call and constant")
        try:
            VersionRange.parse(self.builds)
        except UsageError as error:
            raise ValueError(f"{where}: {error}") from error

    def fits(self, version: KafkaVersion, mode: Mode) -> bool:
        """Whether it is for this build in this mode."""
        return mode in self.modes and version in VersionRange.parse(self.builds)
