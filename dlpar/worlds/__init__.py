"""Worlds of ranks, each with its clock: real (MPI and NCCL), paced, and simulated.

Also platforms on paper.
"""
