"""Worker of a TF_CONFIG cluster.

Its loss is the squared distance between the weight and the worker's number.
"""

import json
import os
import time
from multiprocessing.connection import Client

config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["ps"][0].split(":")
deadline, server = time.monotonic() + 30, None
while server is None:
    try:
        server = Client((host, int(port)))
    except ConnectionRefusedError:  # the server does not listen yet
        if time.monotonic() > deadline:
            raise
        time.sleep(0.02)
weight, number = 0.0, config["task"]["index"]
for _ in range(20):
    server.send(2 * (weight - number))
    weight = server.recv()
result = weight
