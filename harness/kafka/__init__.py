"""Kafka builds, and every way to talk to a running Kafka: protocol, MBeans, logs, command-line tools."""

import warnings

with warnings.catch_warnings():
    # kafka-python reads its 109 schemas, as it is imported, by functions that Python 3.11 calls deprecated.
    warnings.filterwarnings("ignore", r"(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka  # noqa: F401
