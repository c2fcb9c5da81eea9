"""HEALTHCHECK of the image: ends with 0 if the broker in this container serves clients.

Asks /ready at the port in BROKERHOUSE_HTTP, so set `http` in the environment, not in a file.
"""

import os
import sys
import urllib.error
import urllib.request

LIMIT_S = 4.0

port = os.environ["BROKERHOUSE_HTTP"].rpartition(":")[2]
try:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=LIMIT_S):
        pass
except urllib.error.HTTPError as error:
    sys.exit(f"not ready: {error.read().decode().strip()}")
except OSError as error:
    sys.exit(f"the broker does not answer: {error}")
