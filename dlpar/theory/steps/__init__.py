"""What a step of an experiment takes: closed forms put together, and recurrences where there is no common start.

sizes.py fabric.py (what is charged) ─► work.py (computing) ─► allreduce.py mapreduce.py ps.py gossip.py
rounds.py serving.py (from when ranks begin to when they are done)                └─► prediction.py
"""

from __future__ import annotations

from dlpar.theory.steps.prediction import Prediction, predict

__all__ = ["Prediction", "predict"]
