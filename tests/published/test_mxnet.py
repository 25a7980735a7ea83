"""MXNet's table: a parameter server against an all-reduce, by simulation.

Two numbers are fitted on two cells, 1 and 8 servers: what every exchange takes besides
(charged as computing), and the bandwidth a port reaches.  The others are predictions.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from published.simulated import simulated

pytestmark = pytest.mark.slow

TABLE = tomllib.loads(Path(__file__).with_name("mxnet.toml").read_text())
PAYLOAD, WORKERS = TABLE["payload_mb"] * 1e6, TABLE["workers"]


def fit() -> tuple[float, float]:
    """Seconds besides, and bytes a second: T(S) = a + 2 N P / (S b), pushes and answers through a server's port."""
    one, eight = (row["seconds"] for row in TABLE["measured"] if row.get("fitted"))
    through = (one - eight) / (1 - 1 / 8)
    return one - through, 2 * WORKERS * PAYLOAD / through


@pytest.mark.parametrize("row", TABLE["measured"], ids=lambda row: f"{row['servers'] or 'no'} servers")
def test_seconds_of_an_exchange(row, tmp_path):
    besides, bandwidth = fit()
    platform = {"device": {"name": "fitted", "flops": 1e12}, "nodes": 64,
                "between": {"latency": 50e-6, "bandwidth": bandwidth}}  # fmt: skip
    payload = {"parameters": int(PAYLOAD / 4), "flops": besides * 1e12}
    sync = (
        {"scheme": "ps", "servers": row["servers"]}
        if row["servers"]
        else {"scheme": "ring", "bucket_mb": 1000}
    )
    # The first of two steps: all workers begin it together, and nobody ends sooner because it is the last.
    run = simulated(tmp_path, platform, payload, workers=WORKERS, batch=1, steps=2, sync=sync)
    seconds = run.steps.query("step == 0")[["compute", "comm", "wait"]].sum(axis=1).max()
    assert seconds == pytest.approx(row["seconds"], rel=row.get("within", 0.01))
