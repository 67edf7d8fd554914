"""A stream that reads committed records ends by the offsets that Spark reports for its query."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from harness.errors import PipelineError
from harness.kafka.security import Bootstrap
from harness.workload.consumer import ConsumerSpec, StartAt
from harness.workload.stream import StreamReader
from suites.selftest.fakes import fake


class Query(StreamingQuery):
    """A query whose progress is ``says``; an exception is raised instead."""

    def __init__(self, says: object) -> None:
        self._says = says

    @property
    def lastProgress(self) -> Any:
        if isinstance(self._says, Exception):
            raise self._says
        return self._says

    def stop(self) -> None:
        pass


def stream(says: object, tmp_path: Path) -> StreamReader:
    """A stream whose query has this progress."""
    spec = ConsumerSpec(
        consumer="s0",
        session=0,
        run_token="run",
        run_dir=tmp_path,
        bootstrap=Bootstrap(addresses="nowhere:1"),
        topic="t",
        starts={0: StartAt()},
        isolation="read_committed",
    )
    conf = SimpleNamespace(get=lambda _name: str(tmp_path))
    session = fake(SparkSession, sparkContext=SimpleNamespace(getConf=lambda: conf))
    reader = StreamReader(session, lambda *_, **__: None, spec)
    reader.query = Query(says)
    return reader


def progress(end: str | None) -> dict[str, object]:
    return {"sources": [{"endOffset": str(end)}]}


@pytest.mark.parametrize(
    ("says", "ends"),
    [
        (None, {}),
        (progress(None), {}),  # no batch yet
        (progress('{"t":{"0":7,"1":0}}'), {0: 7, 1: 0}),
        (progress("{'t': {'0': 7}}"), {0: 7}),
        (Py4JNetworkError("Spark is gone"), {}),
        (ConnectionRefusedError(), {}),
    ],
)
def test_how_far_it_is(says: object, ends: dict[int, int], tmp_path: Path) -> None:
    """The end offsets by partition; none before the first batch, and none if Spark gives no answer."""
    assert stream(says, tmp_path)._source_ends() == ends


@pytest.mark.parametrize("says", [{"sources": []}, progress("7"), progress('{"other":{"0":7}}'), progress("seven")])
def test_what_can_not_be_read_is_reported(says: object, tmp_path: Path) -> None:
    """Progress in another form than Spark's is an error, and not taken for no progress."""
    reader = stream(says, tmp_path)
    reader.stop({0: 7})
    assert reader.wait(30.0)
    with pytest.raises(PipelineError, match="cannot tell how far stream s0 has read"):
        reader.check()
