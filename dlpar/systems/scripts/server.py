"""Parameter server of a TF_CONFIG cluster. It sums the workers' gradients of one weight and updates it."""

import json
import os
from multiprocessing.connection import Listener

config = json.loads(os.environ["TF_CONFIG"])
host, port = config["cluster"]["ps"][config["task"]["index"]].split(":")
workers, weight = len(config["cluster"]["worker"]), 0.0
with Listener((host, int(port)), backlog=workers) as listener:
    clients = [listener.accept() for _ in range(workers)]
    for _ in range(20):
        weight -= 0.1 * sum(client.recv() for client in clients) / workers
        for client in clients:
            client.send(weight)
result = weight
