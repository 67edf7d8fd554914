"""Container images with a Kafka build: the official image, or one built from ``compose/Dockerfile``.

:func:`image_for` uses the first of these that it can get: a local official image (``apache/kafka``; only for a release
from Maven in KRaft mode); the image that jbod built from this build before; the official image from the registry; an
image that it builds now. It asks a registry only when no local image will do. The journal records the image used.

An image is built on ``JBOD_BASE_IMAGE`` if that is set. An earlier image on another base is then built again. Without
the variable, the base is Temurin's JRE or the image of :func:`make_base`, whichever is local, or Temurin's JRE from the
registry.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from docker.errors import APIError, ImageNotFound
from docker.utils import parse_repository_tag

from harness.cluster.nodes.node import Say
from harness.errors import DistributionError, EnvironmentLacks, HarnessError
from harness.host.atomic_write import write_atomically
from harness.host.cache import cache_dir
from harness.host.engine import BASE_VARIABLE, BASES, OWN_BASE, engine, explained, run_once
from harness.host.scratch import scratch
from harness.kafka.distribution import NOT_TO_RUN, Distribution
from harness.kafka.versions import Mode

_BASE_LABEL = "jbod.base"
"""The label of an image that jbod built, with the name of its base."""
_DOCKERFILE = Path(__file__).resolve().parents[3] / "compose" / "Dockerfile"
_LIBS = "/opt/kafka/libs"
_INSPECT_S = 60.0
_INSPECT = f"java -XX:-UsePerfData -version 2>&1 && ls {_LIBS}/*.jar && bash -c true"


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image with Java and a Kafka build.

    :ivar id: the engine's id of its content
    :ivar jars: the paths of Kafka's jars in the image
    """

    name: str
    id: str
    java_version: str
    jars: tuple[str, ...]


def image_for(distribution: Distribution, mode: Mode, say: Say) -> Image:
    """The image for a build, fetched or built if necessary.

    :raises EnvironmentLacks: there is no engine, or neither an image nor a base to build one on
    :raises DistributionError: the image can't run Kafka
    """
    own = _own_name(distribution)
    official = f"apache/kafka:{distribution.version}" if distribution.source == "maven" and mode is Mode.KRAFT else None
    if official and _labels(official) is not None:
        return _inspect(official)
    base = (_labels(own) or {}).get(_BASE_LABEL)
    if base and base == (os.environ.get(BASE_VARIABLE) or base):
        return _inspect(own)
    if official and _pull(official, say):
        return _inspect(official)
    return _inspect(build(distribution, say=say))


def _own_name(distribution: Distribution) -> str:
    return f"jbod-kafka:{distribution.version}-{distribution.sha256[:12]}"


def build(distribution: Distribution, *, base: str | None = None, say: Say) -> str:
    """Build the image of a Kafka build from ``compose/Dockerfile``; returns its name.

    :param base: the base image; None: see the module's docstring
    :raises EnvironmentLacks: there is no base, or no disk space
    """
    name, base = _own_name(distribution), _base(base, say)
    say(f"Kafka {distribution.version}: building the image {name} on {base}")
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        archive.add(_DOCKERFILE, "Dockerfile")
        for jar in distribution.class_path:
            archive.add(jar, f"libs/{jar.name}", filter=_world_readable)
    context.seek(0)
    with explained(f"the image {name} can't be built on {base}"):
        engine().images.build(
            fileobj=context,
            custom_context=True,
            buildargs={"BASE": base},
            tag=name,
            rm=True,
            forcerm=True,
            labels={_BASE_LABEL: base},
        )
    return name


def _world_readable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mode, entry.uid, entry.gid, entry.uname, entry.gname = 0o644, 0, 0, "", ""
    return entry


def _base(named: str | None, say: Say) -> str:
    named = named or os.environ.get(BASE_VARIABLE)
    bases = (named,) if named else BASES
    for base in bases:
        if _labels(base) is not None:
            return base
    for base in bases:
        if base != OWN_BASE and _pull(base, say):
            return base
    raise EnvironmentLacks(
        f"there is no image to build on: {' and '.join(bases)} can't be fetched; jbod image base makes one from "
        "Debian's packages"
    )


def make_base(say: Say) -> str:
    """Make :data:`OWN_BASE` with mmdebstrap: a minimal Debian with its JRE 17. It takes about a minute and 400 MB.

    :raises EnvironmentLacks: there is no mmdebstrap, or Debian's packages can't be reached
    """
    program = shutil.which("mmdebstrap")
    if program is None:
        raise EnvironmentLacks("mmdebstrap is not on the PATH: apt-get install mmdebstrap")
    client = engine()
    with scratch("base") as folder:
        file = folder / "base.tar"
        say(f"{OWN_BASE}: collecting Debian's packages")
        packages = "--include=openjdk-17-jre-headless"
        done = subprocess.run(
            [program, "--variant=minbase", packages, "bookworm", str(file)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()
            raise EnvironmentLacks(f"mmdebstrap failed: {lines[0] if lines else 'it printed nothing'}")
        say(f"{OWN_BASE}: importing it into the engine")
        with explained(f"the image {OWN_BASE}"):
            name, _, tag = OWN_BASE.partition(":")
            answer = client.api.import_image_from_file(str(file), repository=name, tag=tag)
    if '"error"' in answer:
        raise HarnessError(f"the image {OWN_BASE} can't be imported: {answer.strip()}")
    return OWN_BASE


def _labels(name: str) -> Mapping[str, str] | None:
    """The labels of a local image; None if there is no such image."""
    with explained(f"the image {name}"):
        try:
            image = engine().images.get(name)
        except ImageNotFound:
            return None
    return (image.attrs.get("Config") or {}).get("Labels") or {}  # an imported image may have neither


def _pull(name: str, say: Say) -> bool:
    """Fetch an image from its registry; False if it isn't there or the registry can't be reached."""
    say(f"fetching the image {name}")
    repository, tag = parse_repository_tag(name)
    with explained(f"the image {name}"):
        try:
            lines = engine().api.pull(repository, tag=tag or "latest", stream=True, decode=True)
            reason = next((line["error"] for line in lines if "error" in line), None)
        except APIError as error:
            reason = str(error.explanation or error)
        if reason and "no space left" in reason:
            raise APIError(reason, explanation=reason)
    if reason:
        say(f"{name} can't be fetched: {reason}")
    return not reason


def _inspect(name: str) -> Image:
    """Run the image once to see its Java and its jars; the result is cached by the image's id.

    :raises DistributionError: the image can't run Kafka
    """
    with explained(f"the image {name}"):
        id = str(engine().images.get(name).id)
    cached = cache_dir() / "images" / f"{id.removeprefix('sha256:')[:24]}.json"
    if not cached.exists():
        with explained(f"the image {name}"):
            done = run_once(name, ["sh", "-c", _INSPECT], "image", patience_s=_INSPECT_S)
        if done.returncode:
            last = done.stderr.strip().splitlines() or ["it printed nothing"]
            raise DistributionError(f"the image {name} can't run Kafka (Java, bash, {_LIBS}): {last[-1]}")
        version = re.search(r'version "([^"]*)"', done.stdout)
        if version is None:
            raise DistributionError(f"the image {name} does not report its Java version")
        jars = sorted(line for line in done.stdout.splitlines() if line.startswith(_LIBS))
        jars = [jar for jar in jars if not NOT_TO_RUN.search(Path(jar).name)]
        cached.parent.mkdir(exist_ok=True)
        write_atomically(cached, json.dumps({"java_version": version[1], "jars": jars}) + "\n")
    facts = json.loads(cached.read_text())
    return Image(name=name, id=id, java_version=facts["java_version"], jars=tuple(facts["jars"]))
