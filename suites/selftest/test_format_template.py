"""A node's folders get the files that kafka-storage writes for the build, with ids of the node's own."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from harness.cluster.quorum import format_template as module
from harness.cluster.quorum.format_template import META, FormatTemplate, format_template, random_uuid
from harness.errors import DistributionError
from harness.host.cache import cache_dir
from harness.kafka.distribution import Distribution, from_maven
from harness.kafka.versions import KafkaVersion

LEFT = {
    "4.3.1": {META, "bootstrap.checkpoint"},
    "4.4.0": {META, "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"},
}
"""The files in a controller's metadata log dir, by release."""


def build(version: str) -> Distribution:
    return from_maven(KafkaVersion.parse(version), cache_dir())


def files(dir: Path) -> set[str]:
    return {str(each.relative_to(dir)) for each in dir.rglob("*") if each.is_file()}


def ids(dir: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (dir / META).read_text().splitlines())


@pytest.mark.parametrize("version", LEFT)
def test_a_controller_is_given_all_that_the_tool_leaves(version: str, tmp_path: Path) -> None:
    template, cluster = format_template(build(version)), random_uuid()
    for id in (100, 101):
        dir = tmp_path / str(id)
        dir.mkdir()
        template.write(dir, role="controller", metadata=True, cluster_id=cluster, node_id=id)
        assert files(dir) == LEFT[version]
        assert ids(dir) == {
            "version": "1",
            "cluster.id": cluster,
            "node.id": str(id),
            "directory.id": ids(dir)["directory.id"],
        }
    assert ids(tmp_path / "100")["directory.id"] != ids(tmp_path / "101")["directory.id"]


def test_a_release_with_files_of_its_own_is_taken_as_it_is(tmp_path: Path) -> None:
    """Files with names that no release has yet are copied, too."""
    of_metadata = tmp_path / "template" / "broker" / "metadata"
    (of_metadata / "features" / "0").mkdir(parents=True)
    (of_metadata / "features" / "0" / "finalized").write_bytes(b"\0x")
    (of_metadata / META).write_text("#\nversion=2\nnode.id=1\ncluster.id=x\ndirectory.id=y\nzone.id=z\n")
    dir = tmp_path / "dir"
    dir.mkdir()
    FormatTemplate(path=tmp_path / "template").write(dir, role="broker", metadata=True, cluster_id="c", node_id=7)
    assert (dir / "features" / "0" / "finalized").read_bytes() == b"\0x"
    assert ids(dir) | {"directory.id": ""} == {
        "version": "2",
        "node.id": "7",
        "cluster.id": "c",
        "directory.id": "",
        "zone.id": "z",
    }


def test_what_the_tool_refuses_is_reported_in_its_words() -> None:
    with pytest.raises(DistributionError, match=r"kafka-storage format of .*4\.4\.0 failed: .*9\.9-IV0"):
        format_template(build("4.4.0"), "9.9-IV0")


@pytest.mark.parametrize("kind", ["text", "raw"])
def test_a_file_with_a_cluster_s_id_in_it_is_no_template(kind: str, tmp_path: Path) -> None:
    """Otherwise all clusters of the build would have the same id."""
    cluster = random_uuid()
    (tmp_path / META).write_text(f"cluster.id={cluster}\nnode.id=1\ndirectory.id={random_uuid()}\n")
    (tmp_path / "checkpoint").write_bytes(b"..")
    module._check_no_ids(tmp_path, "kafka-storage format of x", cluster)
    content = cluster.encode() if kind == "text" else base64.urlsafe_b64decode(cluster + "==")
    (tmp_path / "checkpoint").write_bytes(b"." + content + b".")
    with pytest.raises(DistributionError, match=r"wrote the cluster\.id into checkpoint"):
        module._check_no_ids(tmp_path, "kafka-storage format of x", cluster)
