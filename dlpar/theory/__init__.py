"""Closed forms of the cost of messages, collectives and steps on links with latency and bandwidth.

    collectives.py counts.py      one collective: seconds; messages and bytes
    servers.py mixing.py          parameter servers; averaging with neighbours
    overlap.py                    communication during computation
    pipeline.py layers.py         schedules of stages; what the ranks of one replica send for each layer
    step.py                       `predict(experiment)`, which combines these forms for a whole step
    scaling.py                    speed-up, efficiency, crossings; the slowest of several workers; one kernel
    surviving.py                  snapshots, failures, goodput, copies in memory
    calibrate.py                  this machine as a platform

A message of B bytes takes ``latency + B / bandwidth`` seconds.  Every rank has a port that carries one
message out and one in at a time (LogGP, Alexandrov et al. 1995, with a port at each end).  The rules are
those of :mod:`dlpar.worlds.simulated.network`.
"""

from __future__ import annotations

from dlpar.theory.collectives import collective_seconds, fitted
from dlpar.theory.counts import closed_form, coded_bytes, zero_bytes
from dlpar.theory.layers import sizes
from dlpar.theory.mixing import contraction
from dlpar.theory.overlap import Overlapped, buckets, overlapped
from dlpar.theory.pipeline import bubble
from dlpar.theory.scaling import expected_slowest, roofline
from dlpar.theory.servers import Servers
from dlpar.theory.step import PredictedStep, predict
from dlpar.theory.surviving import best_interval, copies_lost, daly_interval, goodput, mtbf_of, young_interval
from dlpar.worlds.platforms import Link

__all__ = [
    "Link", "Overlapped", "PredictedStep", "Servers", "best_interval", "bubble", "buckets", "closed_form",
    "coded_bytes", "collective_seconds", "contraction", "copies_lost", "daly_interval", "expected_slowest", "fitted",
    "goodput", "mtbf_of", "overlapped", "predict", "roofline", "sizes", "young_interval", "zero_bytes",
]  # fmt: skip
