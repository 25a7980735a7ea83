"""Starting the peer under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from dlpar import Experiment

HERE = Path(__file__).parent


def torchrun(experiment: Experiment, warm_up: int, script: str = "ddp.py", ranks: int | None = None) -> dict:
    """Train `experiment` by a peer's `script` on so many ranks (default: its workers); what it printed."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(experiment.to_json())
        file.flush()
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            str(ranks or experiment.workers),
            str(HERE / script),
            file.name,
            str(warm_up),
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent.parent)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"torchrun said nothing:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])
