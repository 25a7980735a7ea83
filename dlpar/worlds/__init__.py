"""Worlds of ranks with their clocks: MPI and NCCL, paced, simulated, and platforms on paper."""
