"""Static figures of runs, for reports and for comparing: the same looks and words as in the panel.

Solid is measured, broad and faint simulated, dashed predicted.  Each function gives a plotly figure;
``say(figure)`` is its sentence and ``table(figure)`` its data.
"""

from dlpar.lab.figure import say, table
from dlpar.lab.figures.agreement import consensus
from dlpar.lab.figures.buckets import bucket_sizes
from dlpar.lab.figures.cost import collective_times, link_fit
from dlpar.lab.figures.differences import differences
from dlpar.lab.figures.excess import excess
from dlpar.lab.figures.exposed import exposed
from dlpar.lab.figures.graph import show_graph
from dlpar.lab.figures.lag import lead, staleness
from dlpar.lab.figures.memory import memory
from dlpar.lab.figures.mesh import mesh
from dlpar.lab.figures.micro_batches import micro_batches
from dlpar.lab.figures.pieces import pieces
from dlpar.lab.figures.pipeline import pipeline
from dlpar.lab.figures.schedule import schedule
from dlpar.lab.figures.sending import sending
from dlpar.lab.figures.split_bytes import layer_bytes
from dlpar.lab.figures.steps import bytes_per_rank, lanes, timeline, waiting
from dlpar.lab.figures.training import convergence, overlay, speedup, throughput, time_to_accuracy

__all__ = [
    "bucket_sizes", "bytes_per_rank", "collective_times", "consensus", "convergence", "differences", "excess",
    "exposed", "lanes", "layer_bytes", "lead", "link_fit", "memory", "mesh", "micro_batches", "overlay", "pieces", "pipeline",
    "say", "schedule", "sending", "show_graph", "speedup", "staleness", "table", "throughput", "time_to_accuracy",
    "timeline", "waiting",
]  # fmt: skip
