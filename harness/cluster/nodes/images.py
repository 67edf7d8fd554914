"""Images that nodes run in: the official one of a release, or any build on a base with Java (``compose/Dockerfile``).

What is used is the first of these that is there or can be had: the official image (``apache/kafka``, KRaft only) of a
release from Maven, the build's own image if it was made before, the official one from the registry, the build's own
image made now. Nothing is asked of a registry while there is something to use; what was used is in the journal.

The base of an own image is ``JBOD_BASE_IMAGE`` where that is set (an image that was made on another is made anew), else
what is here of Temurin's JRE and of what :func:`make_base` makes from Debian's packages, for machines that reach no
registry, else Temurin's JRE, fetched.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from docker.errors import APIError, ImageNotFound
from docker.utils import parse_repository_tag

from harness.errors import DistributionError, EnvironmentLacks, HarnessError
from harness.host.atomic_write import write_atomically
from harness.host.cache import cache_dir
from harness.host.engine import BASE_VARIABLE, BASES, OWN_BASE, engine, explained, run_once
from harness.host.scratch import scratch
from harness.kafka.distribution import NOT_TO_RUN, Distribution
from harness.kafka.versions import Mode

_MADE_ON = "jbod.base"
"""A label of own images."""
_DOCKERFILE = Path(__file__).resolve().parents[3] / "compose" / "Dockerfile"
_LIBS = "/opt/kafka/libs"
_LOOK_S = 60.0
_LOOK = f"java -XX:-UsePerfData -version 2>&1 && ls {_LIBS}/*.jar && bash -c true"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image with Java and a Kafka build in it.

    :ivar id: of its content
    :ivar jars: the build's, by their paths in it
    """

    name: str
    id: str
    java_version: str
    jars: tuple[str, ...]


def image_for(distribution: Distribution, mode: Mode, say: Say) -> Image:
    """The image for a build; fetched or made if need be.

    :raises EnvironmentLacks: there is no engine, or no image and no base to make one on
    :raises DistributionError: the image can't run Kafka
    """
    own = _own_name(distribution)
    official = f"apache/kafka:{distribution.version}" if distribution.source == "maven" and mode is Mode.KRAFT else None
    if official and _is_here(official):
        return _look_into(official)
    if (base := _base_of(own)) and base == (os.environ.get(BASE_VARIABLE) or base):
        return _look_into(own)
    if official and _pull(official, say):
        return _look_into(official)
    return _look_into(build(distribution, say=say))


def _own_name(distribution: Distribution) -> str:
    return f"jbod-kafka:{distribution.version}-{distribution.sha256[:12]}"


def build(distribution: Distribution, *, base: str | None = None, say: Say) -> str:
    """Make the image of a build from ``compose/Dockerfile`` and return its name.

    :param base: the image under it; None: see the module's text
    :raises EnvironmentLacks: there is no base, or no room
    """
    name, base = _own_name(distribution), _base(base, say)
    say(f"Kafka {distribution.version}: making the image {name} on {base}")
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        archive.add(_DOCKERFILE, "Dockerfile")
        for jar in distribution.class_path:
            archive.add(jar, f"libs/{jar.name}", filter=_for_all)
    context.seek(0)
    with explained(f"the image {name} can't be made on {base}"):
        engine().images.build(
            fileobj=context,
            custom_context=True,
            buildargs={"BASE": base},
            tag=name,
            rm=True,
            forcerm=True,
            labels={_MADE_ON: base},
        )
    return name


def _for_all(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mode, entry.uid, entry.gid, entry.uname, entry.gname = 0o644, 0, 0, "", ""
    return entry


def _base(named: str | None, say: Say) -> str:
    named = named or os.environ.get(BASE_VARIABLE)
    bases = (named,) if named else BASES
    for base in bases:
        if _is_here(base):
            return base
    for base in bases:
        if base != OWN_BASE and _pull(base, say):
            return base
    raise EnvironmentLacks(
        f"there is no image to build on: {' and '.join(bases)} can't be had here; jbod image base makes one from "
        "Debian's packages"
    )


def make_base(say: Say) -> str:
    """Make :data:`OWN_BASE`: Debian's smallest system with its JRE 17, by mmdebstrap; about a minute, 400 MB.

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
            raise EnvironmentLacks(f"mmdebstrap failed: {lines[0] if lines else 'it said nothing'}")
        say(f"{OWN_BASE}: handing it to the engine")
        with explained(f"the image {OWN_BASE}"):
            name, _, tag = OWN_BASE.partition(":")
            said = client.api.import_image_from_file(str(file), repository=name, tag=tag)
    if '"error"' in said:
        raise HarnessError(f"the image {OWN_BASE} can't be imported: {said.strip()}")
    return OWN_BASE


def _is_here(name: str) -> bool:
    return _labels(name) is not None


def _base_of(own: str) -> str:
    """What an own image was made on; empty where it isn't here."""
    return (_labels(own) or {}).get(_MADE_ON, "")


def _labels(name: str) -> Mapping[str, str] | None:
    """None where there is no such image here."""
    with explained(f"the image {name}"):
        try:
            image = engine().images.get(name)
        except ImageNotFound:
            return None
    return (image.attrs.get("Config") or {}).get("Labels") or {}  # an image that was imported may have neither


def _pull(name: str, say: Say) -> bool:
    """Fetch an image from its registry; False where it isn't there or can't be reached."""
    say(f"fetching the image {name}")
    repository, tag = parse_repository_tag(name)
    with explained(f"the image {name}"):
        try:
            lines = engine().api.pull(repository, tag=tag or "latest", stream=True, decode=True)
            said = next((line["error"] for line in lines if "error" in line), None)
        except APIError as error:
            said = str(error.explanation or error)
        if said and "no space left" in said:
            raise APIError(said, explanation=said)
    if said:
        say(f"{name} can't be fetched: {said}")
    return not said


def _look_into(name: str) -> Image:
    """Ask the image itself which Java and which jars it has; remembered by its id."""
    with explained(f"the image {name}"):
        id = str(engine().images.get(name).id)
    known = cache_dir() / "images" / f"{id.removeprefix('sha256:')[:24]}.json"
    if not known.exists():
        known.parent.mkdir(exist_ok=True)
        write_atomically(known, json.dumps(_ask(name)) + "\n")
    facts = json.loads(known.read_text())
    return Image(name=name, id=id, java_version=facts["java_version"], jars=tuple(facts["jars"]))


def _ask(name: str) -> dict[str, object]:
    with explained(f"the image {name}"):
        done = run_once(name, ["sh", "-c", _LOOK], "image", patience_s=_LOOK_S)
    if done.returncode:
        last = done.stderr.strip().splitlines() or ["it said nothing"]
        raise DistributionError(f"the image {name} can't run Kafka (Java, bash, {_LIBS}): {last[-1]}")
    version = re.search(r'version "([^"]*)"', done.stdout)
    jars = sorted(line for line in done.stdout.splitlines() if line.startswith(_LIBS))
    jars = [jar for jar in jars if not NOT_TO_RUN.search(Path(jar).name)]
    if version is None:
        raise DistributionError(f"the image {name} doesn't say its Java's version")
    return {"java_version": version[1], "jars": jars}
