"""Worlds of ranks, each with its own clock: real (MPI and NCCL), paced and simulated.

The package also holds platforms on paper.
"""
