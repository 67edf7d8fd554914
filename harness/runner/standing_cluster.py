"""Tells users how to reach a cluster that was kept."""

from __future__ import annotations

import shlex

from harness.cluster.cluster import Cluster
from harness.kafka.builds import BuildOptions
from harness.runner.subrun import arguments_of


def how_to_reach(cluster: Cluster) -> list[str]:
    """Return lines with its brokers and log dirs, and the commands to inspect it and to stop it."""
    build = shlex.join(arguments_of(vars(BuildOptions.of(cluster.distribution))))
    where = f"--bootstrap-server {cluster.brokers[0].bootstrap}"
    return [
        f"Kafka {cluster.distribution.version}, {cluster.spec.mode}, bootstrap {cluster.bootstrap}",
        *(
            f"  {broker}: {broker.bootstrap} {' '.join(str(d.path) for d in broker.log_dirs)}"
            for broker in cluster.brokers
        ),
        f"inspect it:   jbod tool {build} topics {where} --describe",
        f"its log dirs: jbod tool {build} log-dirs {where} --describe",
        f"take it down: jbod cluster down {cluster.undo_log.run_id}",
    ]
