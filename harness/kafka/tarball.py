"""Unpacks an untrusted tarball; refuses one that is unsafe, broken or cut off.

It can't use ``tarfile.extract`` with its ``data`` filter: Debian 12 has Python 3.11.2, and the filter came with 3.11.4.
It makes only new files, new folders, and new links that stay inside, without the archive's owners, times and
permissions. Unlike the filter, it refuses absolute names, ``..``, writes through a link, and an archive without its end
mark.
"""

from __future__ import annotations

import lzma
import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from harness.errors import DistributionError

# An unpacked Kafka release has 120 MB and about 250 members.
MOST_BYTES = 4 << 30
MOST_MEMBERS = 100_000


def unpack(file: Path, into: Path) -> None:
    """Unpack ``file`` into an empty folder.

    :raises DistributionError: it is not a tarball, is broken, cut off or too big, or has a member that is
        refused; the caller removes what is unpacked by then
    :raises OSError: the folder can't be written
    """
    try:
        with tarfile.open(file) as archive:
            _unpack(archive, file, into)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError) as error:
        # If no format fits, tarfile gives each format's reason on further lines.
        why = str(error).partition("\n")[0].rstrip(":")
        raise DistributionError(f"{file} is not a tarball, or is broken or cut off: {why}") from error
    except OSError as error:
        # gzip and bz2 report broken data by an OSError without errno.
        if error.errno is not None:
            raise
        raise DistributionError(f"{file} is broken or cut off: {error}") from error


def _unpack(archive: tarfile.TarFile, file: Path, into: Path) -> None:
    links: set[PurePosixPath] = set()
    size = 0
    for count, member in enumerate(archive, start=1):
        size += member.size
        if size > MOST_BYTES or count > MOST_MEMBERS:
            raise DistributionError(f"{file} is not unpacked: more than {MOST_BYTES} bytes or {MOST_MEMBERS} members")
        path = PurePosixPath(member.name)
        why = _objection(member, path, links)
        if not why:
            if member.issym() or member.islnk():
                links.add(path)
            try:
                _make(archive, member, into)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                why = "has the path of another member"
            except FileNotFoundError:
                why = f"links to {member.linkname!r}, which isn't there"
        if why:
            raise DistributionError(f"{file} is not unpacked: its member {member.name!r} {why}")
    _check_end(archive)


def _make(archive: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    """Make a member that :func:`_objection` allows."""
    target = into / member.name
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        os.link(into / member.linkname, target, follow_symlinks=False)
    else:
        content = archive.extractfile(member)
        assert content is not None
        with target.open("xb") as stream:
            shutil.copyfileobj(content, stream, 1 << 20)
        if target.stat().st_size != member.size:
            raise tarfile.ReadError(f"{member.name!r} is shorter than its header says")


def _objection(member: tarfile.TarInfo, path: PurePosixPath, links: set[PurePosixPath]) -> str:
    """Why a member is refused; empty if it isn't."""
    if path.is_absolute():
        return "has an absolute path"
    if ".." in path.parts:
        return "climbs out of its folder"
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "is neither a file, a folder nor a link"
    if links & {path, *path.parents}:
        return "would be written through a link"
    if member.issym() or member.islnk():
        target = PurePosixPath(member.linkname)
        if target.is_absolute():
            return f"links to the absolute path {member.linkname!r}"
        # A symbolic link starts from its own folder, a hard link from the archive's root.
        parts = list(path.parent.parts) if member.issym() else []
        for part in target.parts:
            if part != "..":
                parts.append(part)
            elif parts:
                parts.pop()
            else:
                return f"links out of the archive, to {member.linkname!r}"
            if PurePosixPath(*parts) in links:
                return f"links through another link, to {member.linkname!r}"
    return ""


def _check_end(archive: tarfile.TarFile) -> None:
    """Check that the archive has its end mark; read to the end, so that the compressor checks its checksum."""
    stream = archive.fileobj
    assert stream is not None
    stream.seek(archive.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise tarfile.ReadError("it ends without an end mark")
    while stream.read(1 << 20):
        pass
