"""A process that starts one job under limits, as ``{"limits": {"RLIMIT_NOFILE": 24}, "experiment": …}`` says."""

from __future__ import annotations

import json
import resource
import sys

import dlpar

asked = json.loads(sys.argv[1])
for name, most in asked["limits"].items():
    resource.setrlimit(getattr(resource, name), (most, most))
try:
    job = dlpar.launch(dlpar.Experiment(**asked["experiment"]))
    print(job.folder, flush=True)
    job.wait()
    print("done")
except (dlpar.JobFailed, dlpar.BadExperiment, OSError) as error:
    print(f"{type(error).__name__}: {error}")
