"""Static figures of runs, for reports and comparisons, with the style and the captions of the panel.

Solid lines are measured, broad and faint ones simulated, dashed ones predicted. Each function returns a plotly
figure; ``caption(figure)`` is its caption and ``table(figure)`` its data.
"""

from dlpar.lab.figure import caption, table
from dlpar.lab.figures.agreement import consensus, show_graph
from dlpar.lab.figures.cost import collective_times, link_fit
from dlpar.lab.figures.layer_bytes import layer_bytes
from dlpar.lab.figures.memory import memory
from dlpar.lab.figures.mesh import mesh
from dlpar.lab.figures.overlap import bucket_sizes, exposed, sending
from dlpar.lab.figures.pieces import differences, pieces
from dlpar.lab.figures.pipeline import micro_batches, pipeline, schedule
from dlpar.lab.figures.steps import bytes_per_rank, lanes, lead, staleness, timeline, waiting
from dlpar.lab.figures.training import (
    convergence,
    overlay,
    speedup,
    suboptimality,
    throughput,
    time_to_accuracy,
)

__all__ = [
    "bucket_sizes", "bytes_per_rank", "caption", "collective_times", "consensus", "convergence", "differences",
    "exposed", "lanes", "layer_bytes", "lead", "link_fit", "memory", "mesh", "micro_batches", "overlay", "pieces",
    "pipeline", "schedule", "sending", "show_graph", "speedup", "staleness", "suboptimality", "table", "throughput",
    "time_to_accuracy", "timeline", "waiting",
]  # fmt: skip
