"""The image that a build runs in, and the error where none can be had."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest

from harness.cluster.nodes import images
from harness.cluster.nodes.images import image_for
from harness.cluster.nodes.node import Say
from harness.errors import EnvironmentLacks
from harness.host.engine import OWN_BASE
from harness.kafka.distribution import Distribution, Source
from harness.kafka.versions import KafkaVersion, Mode
from suites.selftest.stand_in_engine import StandIn, answering


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("failed to register layer: write /x: no space left on device", "the Docker engine's disk is full"),
        ("toomanyrequests: You have reached your pull rate limit", None),
    ],
)
def test_why_an_image_can_not_be_fetched_is_reported(address: Path, error: str, says: str | None) -> None:
    """The engine answers with success, and has the error in a later line."""
    lines = {"status": "Pulling from x"}, {"error": error}

    def do_POST(self: StandIn) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for text in (*(f"{json.dumps(line)}\r\n" for line in lines), ""):
            self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())

    said: list[str] = []
    expected = pytest.raises(EnvironmentLacks, match=says) if says else nullcontext()
    with answering(address, do_POST=do_POST), expected:
        assert not images._pull("eclipse-temurin:17-jre", said.append)
    assert says or said[-1] == f"eclipse-temurin:17-jre can't be fetched: {error}"


def test_no_image_to_build_on_can_be_had(address: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base image is not on the machine, and no registry has it."""
    monkeypatch.delenv("JBOD_BASE_IMAGE", raising=False)

    def do_GET(self: StandIn) -> None:
        if "/images/" in self.path:
            self.answer({"message": "No such image"}, 404)
        else:
            StandIn.do_GET(self)

    refused: list[str] = []
    nowhere = answering(address, do_GET=do_GET, do_POST=lambda self: self.answer({"message": "no such host"}, 500))
    with nowhere, pytest.raises(EnvironmentLacks, match=r"there is no image to build on: .* jbod image base makes one"):
        images._base(None, refused.append)
    assert any("can't be fetched: no such host" in line for line in refused)


OFFICIAL, OWN, TEMURIN = "apache/kafka:4.3.1", f"jbod-kafka:4.3.1-{'a' * 12}", "eclipse-temurin:17-jre"


@pytest.mark.parametrize(
    ("build", "here", "registry", "used", "asked"),
    [
        ("maven kraft", {OFFICIAL, OWN}, {OFFICIAL}, OFFICIAL, []),
        ("maven kraft", {OWN}, {OFFICIAL}, OWN, []),
        ("maven kraft", {TEMURIN}, {OFFICIAL}, OFFICIAL, [f"fetch {OFFICIAL}"]),
        ("maven kraft", {TEMURIN, OWN_BASE}, {}, OWN, [f"fetch {OFFICIAL}", f"build on {TEMURIN}"]),
        ("maven kraft", {OWN_BASE}, {TEMURIN}, OWN, [f"fetch {OFFICIAL}", f"build on {OWN_BASE}"]),
        ("maven kraft", {}, {TEMURIN}, OWN, [f"fetch {OFFICIAL}", f"fetch {TEMURIN}", f"build on {TEMURIN}"]),
        # The official image has Maven's build, and runs KRaft only.
        ("maven zk", {OFFICIAL}, {OFFICIAL, TEMURIN}, OWN, [f"fetch {TEMURIN}", f"build on {TEMURIN}"]),
        ("tarball kraft", {OFFICIAL}, {OFFICIAL, TEMURIN}, OWN, [f"fetch {TEMURIN}", f"build on {TEMURIN}"]),
        ("home kraft mine:1", {TEMURIN}, {"mine:1"}, OWN, ["fetch mine:1", "build on mine:1"]),
        ("home kraft mine:1", {"mine:1"}, {}, OWN, ["build on mine:1"]),
        # Built earlier, on another base (TEMURIN, below) or on this one.
        ("home kraft mine:1", {OWN, "mine:1"}, {}, OWN, ["build on mine:1"]),
        (f"home kraft {TEMURIN}", {OWN, TEMURIN}, {}, OWN, []),
    ],
)
def test_which_image_is_used(
    monkeypatch: pytest.MonkeyPatch, build: str, here: set[str], registry: set[str], used: str, asked: list[str]
) -> None:
    """An image on the machine is preferred to one that must be fetched, and that to one that must be built."""
    source, mode, *base = build.split()
    version = KafkaVersion.parse("4.3.1")
    distribution = Distribution(version=version, source=cast(Source, source), origin="", class_path=(), sha256="a" * 64)
    did: list[str] = []

    def pull(name: str, _say: object) -> bool:
        did.append(f"fetch {name}")
        return name in registry

    def make(distribution: Distribution, *, base: str | None = None, say: Say) -> str:
        did.append(f"build on {images._base(base, say)}")
        return images._own_name(distribution)

    monkeypatch.setattr(images, "_labels", lambda name: {images._BASE_LABEL: TEMURIN} if name in here else None)
    monkeypatch.setattr(images, "_pull", pull)
    monkeypatch.setattr(images, "build", make)
    monkeypatch.setattr(images, "_inspect", lambda name: images.Image(name=name, id="x", java_version="17", jars=()))
    monkeypatch.setenv("JBOD_BASE_IMAGE", "".join(base))
    assert (image_for(distribution, Mode(mode), print).name, did) == (used, asked)
