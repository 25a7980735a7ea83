"""Worlds, in which ranks live and time passes: MPI and NCCL, paced, simulated, and platforms on paper."""
