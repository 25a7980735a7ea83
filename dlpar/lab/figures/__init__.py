"""Static figures of runs, for reports and for comparing: the same looks and words as in the panel.

Solid is measured, broad and faint simulated, dashed predicted.  Each function gives a plotly figure;
``say(figure)`` is its sentence and ``table(figure)`` its data.
"""

from dlpar.lab.figure import say, table
from dlpar.lab.figures.agreement import consensus, show_graph
from dlpar.lab.figures.cost import collective_times, link_fit
from dlpar.lab.figures.memory import memory
from dlpar.lab.figures.mesh import mesh
from dlpar.lab.figures.overlap import exposed, sending
from dlpar.lab.figures.pieces import differences, pieces
from dlpar.lab.figures.pipeline import pipeline, schedule
from dlpar.lab.figures.sizes import bucket_sizes, micro_batches
from dlpar.lab.figures.split_bytes import layer_bytes
from dlpar.lab.figures.steps import bytes_per_rank, lanes, lead, staleness, timeline, waiting
from dlpar.lab.figures.training import convergence, excess, overlay, speedup, throughput, time_to_accuracy

__all__ = [
    "bucket_sizes", "bytes_per_rank", "collective_times", "consensus", "convergence", "differences", "excess",
    "exposed", "lanes", "layer_bytes", "lead", "link_fit", "memory", "mesh", "micro_batches", "overlay", "pieces", "pipeline",
    "say", "schedule", "sending", "show_graph", "speedup", "staleness", "table", "throughput", "time_to_accuracy",
    "timeline", "waiting",
]  # fmt: skip
