"""Kafka builds, and every way to talk to a running Kafka: protocol, MBeans, logs, command-line tools."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def schemas_read() -> Iterator[None]:
    """Inside the block kafka-python may read schemas, by functions that Python 3.11 calls deprecated."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"(read_text|open_text) is deprecated", DeprecationWarning)
        yield


with schemas_read():  # kafka-python reads its 109 schemas as it is imported
    import kafka  # noqa: F401
