"""Ray clusters of a test's own, beside the shared head: processes of this machine that this process does not join."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Ray's own settings: a dead node is noticed within two seconds instead of fourteen
QUICK_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 2,
}


@contextmanager
def cluster(*, cpus: int, dashboard: bool = False) -> Iterator[Any]:
    """Start a head and yield Ray's own Cluster; `add_node`, `address` and `webui_url` of it are of use here."""
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": dashboard, "_system_config": QUICK_CHECKS}
    head["dashboard_agent_listen_port"] = _free_port()  # jobs need it; Ray's own number is taken by the shared head
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield made
    finally:
        made.shutdown()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
