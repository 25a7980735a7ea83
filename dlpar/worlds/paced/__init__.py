"""Paced world: real processes on logical clocks. One process keeps the clocks for all ranks.

`comm` defines the calls of ranks. `referee` simulates these calls. Each rank asks the referee through
`protocol`, sends the tensors as `parcels`, and lets the wall clock follow.
"""
