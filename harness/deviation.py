"""A known deviation of Kafka builds from a KIP: a scenario that shows it is valid, and says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from harness.releases.versions import KafkaVersion, Mode, VersionRange


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """What a KIP says, what these builds do instead, and where that is told.

    Whoever checks the promise expects of these builds exactly what they do, so that a build that has been mended fails
    the check with "no longer deviates" instead of passing by a loosened one.
    """

    kip: int
    says: str
    does: str
    issue: str
    builds: VersionRange
    modes: tuple[Mode, ...] = tuple(Mode)
    always: bool = True
    """A case that declares it must show it; else whether there is anything to be seen is Kafka's choice."""
    lasts: bool = True
    """Where it was seen a broker may be another than before, so that its cluster serves no other case; False: it is but
    an answer, a figure or a choice."""

    def is_of(self, version: KafkaVersion, mode: Mode) -> bool:
        """Whether it is expected of this build in this mode."""
        return version in self.builds and mode in self.modes

    @property
    def gone(self) -> str:
        """What is said of a build that is known for it and keeps the promise."""
        return f"no longer deviates: {self.does}"

    def to_json(self) -> dict[str, object]:
        """As ``--json`` has it."""
        return {**asdict(self), "builds": str(self.builds), "modes": [mode.value for mode in self.modes]}
