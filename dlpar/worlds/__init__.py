"""Where ranks live and what time is: MPI and NCCL, the paced world, the simulated one, and platforms on paper."""
