"""The paced world: real processes on logical clocks, which one process keeps for all.

`comm` has the calls of its ranks.  `referee` simulates the calls; each rank asks it by `protocol`,
sends the tensors themselves as `parcels`, and lets the wall clock follow.
"""

from __future__ import annotations
