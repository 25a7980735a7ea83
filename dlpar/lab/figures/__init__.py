"""Figures of runs: a panel's live figures, and figures of finished runs.

Solid lines are measured, broad and faint lines are simulated, and dashed lines are predicted. Each function
returns a plotly figure.  ``caption(figure)`` is its caption, and ``table(figure)`` has its data.
"""

from dlpar.lab.figure import caption, table
from dlpar.lab.figures.consensus import consensus, show_graph
from dlpar.lab.figures.convergence import convergence, first_at, overlay, suboptimality, time_to_accuracy
from dlpar.lab.figures.cost import bucket_sizes, collective_times, exposed, link_fit, sending
from dlpar.lab.figures.pieces import differences, layer_bytes, mesh, pieces
from dlpar.lab.figures.pipeline import memory, micro_batches, pipeline, schedule
from dlpar.lab.figures.scaling import speedup
from dlpar.lab.figures.staleness import lead, staleness
from dlpar.lab.figures.throughput import throughput, waiting
from dlpar.lab.figures.timeline import lanes, timeline
