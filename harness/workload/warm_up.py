"""Makes the first use of a Spark session as quick as the second, while the cluster is still starting.

The first Python task of a session starts Python's workers and imports Arrow and the Kafka client (1 to 2 s), the first
query loads and compiles a good part of Spark SQL (3 to 4 s). Both can be had before there is a broker.
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
    """Run a task in as many Python workers as a pair needs, and a query like a drain's; a failure is left to the real
    task or query to report.
    """
    with suppress(Exception):
        session.sparkContext.parallelize(range(_WORKERS), _WORKERS).mapPartitions(iter).count()
    local = session.sparkContext.getConf().get("spark.local.dir")  # goes with the session, in any case
    scratch = Path(tempfile.mkdtemp(prefix="jbod-warm-", dir=local))
    try:
        with suppress(Exception):
            # Loading the connector asks no broker.
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
