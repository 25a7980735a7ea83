"""Worker without a cluster. It sums its share of the numbers below 1,000. Worker 3 fails on purpose."""

import os

number = int(os.environ["DLPAR_WORKER"])
if number == 3:
    raise RuntimeError("worker 3 fails on purpose")
result = sum(range(number, 1000, 3))
