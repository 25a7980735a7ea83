"""The paced world's inside: real processes on logical clocks, which one of them keeps for all.

`referee` runs the simulation of the ranks' calls; each rank asks it over a `line` in
`frames`, sends the tensors themselves as `parcels`, and lets the `wall` clock follow.
"""

from __future__ import annotations
