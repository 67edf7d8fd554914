"""Spark's JVM starts from a class data archive, which is made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.spark.class_archive import archive_of, use_options
from harness.workload.spark_archive import prepare_spark_archive

LOADED = """
import sys
from pathlib import Path
from harness.spark.session import end_spark, spark_session
from harness.spark.class_archive import use_options
spark_session("local[2]", jars=(), jvm_options=[*use_options(()), "-Xlog:class+load:file=" + sys.argv[1]])
end_spark()
"""


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JBOD_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.usefixtures("empty_cache")
def test_spark_loads_its_classes_from_the_archive(tmp_path: Path) -> None:
    said: list[str] = []
    assert use_options(()) == ()
    prepare_spark_archive((), said.append)
    assert len(said) == 1
    assert archive_of(()).is_file()
    prepare_spark_archive((), said.append)
    assert len(said) == 1
    log = tmp_path / "classes.log"
    subprocess.run([sys.executable, "-c", LOADED, str(log)], check=True, timeout=120)
    lines = log.read_text().splitlines()
    archived = sum("shared objects file" in line for line in lines)
    assert archived > 0.8 * len(lines)


@pytest.mark.usefixtures("empty_cache")
def test_without_an_archive_spark_starts_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("harness.workload.spark_archive.MAKE_S", 1.0)
    prepare_spark_archive((), said.append)
    assert "Spark will start more slowly: Spark made no class data archive within 1 s" in said
    assert use_options(()) == ()
