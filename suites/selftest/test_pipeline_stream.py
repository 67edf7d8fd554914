"""How far a streaming query is, as Spark tells it, which a stream that reads what was committed goes by at its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from harness.errors import PipelineError
from harness.workload.consumer import ConsumerSpec, StartAt
from harness.workload.stream import StreamReader


class Query:
    """As much of a query as is asked when a stream is to end."""

    def __init__(self, says: Any) -> None:
        self._says = says

    @property
    def lastProgress(self) -> Any:
        if isinstance(self._says, Exception):
            raise self._says
        return self._says

    def stop(self) -> None:
        pass


def stream(query: Query, tmp_path: Path) -> StreamReader:
    spec = ConsumerSpec(
        consumer="s0",
        session=0,
        run_token="run",
        run_dir=tmp_path,
        bootstrap="nowhere:1",
        topic="t",
        starts={0: StartAt()},
        isolation="read_committed",
    )
    conf = SimpleNamespace(get=lambda _name: str(tmp_path))
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))
    reader = StreamReader(session, lambda *_, **__: None, spec)
    reader.query = query  # type: ignore[assignment]
    return reader


def progress(end: str | None) -> dict[str, Any]:
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
def test_how_far_it_is(says: Any, ends: dict[int, int], tmp_path: Path) -> None:
    assert stream(Query(says), tmp_path)._source_ends() == ends


@pytest.mark.parametrize("says", [{"sources": []}, progress("7"), progress('{"other":{"0":7}}'), progress("seven")])
def test_what_can_not_be_read_is_told(says: Any, tmp_path: Path) -> None:
    reader = stream(Query(says), tmp_path)
    reader.stop({0: 7})
    assert reader.wait(30.0)
    with pytest.raises(PipelineError, match="nobody knows how far stream s0 is"):
        reader.check()
