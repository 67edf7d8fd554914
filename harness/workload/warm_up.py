"""Warms up a Spark session while the cluster is still starting.

The first Python task of a session starts Python workers, which import Arrow and the Kafka client (1 to 2 s). The first
query loads and compiles much of Spark SQL (3 to 4 s). Neither needs a broker.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from harness.workload.drain import history_rows

# A producer and a consumer.
_WORKERS = 2


def warm_up(session: SparkSession) -> None:
    """Run a task in as many Python workers as a pair needs, and a query like that of a drain.

    It ignores errors: the real task or query will report them.
    """
    with suppress(Exception):
        session.sparkContext.parallelize(range(_WORKERS), _WORKERS).mapPartitions(iter).count()
    local = session.sparkContext.getConf().get("spark.local.dir")
    scratch = Path(tempfile.mkdtemp(prefix="jbod-warm-", dir=local))
    try:
        with suppress(Exception):
            # Loading the connector needs no broker.
            session.read.format("kafka").options(**{"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}).load()
            records = session.range(1).select(
                F.lit(b"").alias("value"),
                F.lit("").alias("topic"),
                F.lit(0).alias("partition"),
                F.col("id").alias("offset"),
            )
            history_rows(records, "t", "d", "read_uncommitted").write.parquet(str(scratch / "rows"), compression="zstd")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
