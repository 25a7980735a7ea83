"""Static figures of runs, for reports and for comparing: the same looks and words as in the panel.

Solid is measured, broad and faint simulated, dashed predicted.  Each function gives a plotly figure;
``say(figure)`` is its sentence and ``table(figure)`` its data.
"""

from dlpar.lab.figure import say, table
from dlpar.lab.figures.agreement import consensus, show_graph
from dlpar.lab.figures.cost import collective_times, link_fit
from dlpar.lab.figures.excess import excess
from dlpar.lab.figures.lag import lead, staleness
from dlpar.lab.figures.memory import memory
from dlpar.lab.figures.pieces import pieces
from dlpar.lab.figures.pipeline import pipeline
from dlpar.lab.figures.split_bytes import layer_bytes
from dlpar.lab.figures.steps import bytes_per_rank, lanes, timeline, waiting
from dlpar.lab.figures.training import convergence, overlay, speedup, throughput, time_to_accuracy

__all__ = [
    "bytes_per_rank", "collective_times", "consensus", "convergence", "excess", "lanes", "layer_bytes", "lead",
    "link_fit", "memory", "overlay", "pieces", "pipeline", "say", "show_graph", "speedup", "staleness", "table",
    "throughput", "time_to_accuracy", "timeline", "waiting",
]  # fmt: skip
