"""Closed forms of time: what messages, collectives and steps take on links that are known by two numbers.

    links.py collectives.py servers.py overlap.py waiting.py pipeline.py: one form a function, with its source
    steps/: `predict(experiment)`, which puts them together, and follows messages where steps run into each other

A message of B bytes takes ``latency + B / bandwidth`` seconds; every rank has a port that
carries one message out and one in at a time (LogGP, Alexandrov et al. 1995, with a port at
each end; the rules are those of :mod:`dlpar.comm.simulation.network`).
"""

from __future__ import annotations

from dlpar.costmodel.collectives import collective_seconds
from dlpar.costmodel.links import fitted
from dlpar.costmodel.memory import ModelState, model_state, zero_bytes
from dlpar.costmodel.overlap import (
    Overlapped,
    buckets,
    exposed_seconds,
    gossip_seconds,
    local_sgd_seconds,
    overlapped,
)
from dlpar.costmodel.pipeline import bubble
from dlpar.costmodel.servers import ps_asp_seconds, ps_round_seconds, ps_step_seconds, two_level_ps_seconds
from dlpar.costmodel.steps import Prediction, predict
from dlpar.costmodel.waiting import expected_slowest, ssp_bounds
from dlpar.platforms.link import Link

__all__ = [
    "Link", "ModelState", "Overlapped", "Prediction", "bubble", "buckets", "collective_seconds", "expected_slowest",
    "exposed_seconds", "fitted", "gossip_seconds", "local_sgd_seconds", "model_state", "overlapped", "predict",
    "ps_asp_seconds", "ps_round_seconds", "ps_step_seconds", "ssp_bounds", "two_level_ps_seconds", "zero_bytes",
]  # fmt: skip
