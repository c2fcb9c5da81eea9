"""HEALTHCHECK of the image: ends with 0 if the broker in this container serves clients.

Asks /ready at the address in BROKERHOUSE_HTTP, so set `http` in the environment, not in a file.
Where it listens on every address, the loopback is asked: 0.0.0.0 and [::] are no destinations.
"""

import os
import sys
import urllib.error
import urllib.request

LIMIT_S = 4.0
LOOPBACKS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}

host, _, port = os.environ["BROKERHOUSE_HTTP"].rpartition(":")
try:
    url = f"http://{LOOPBACKS.get(host, host)}:{port}/ready"
    with urllib.request.urlopen(url, timeout=LIMIT_S):
        pass
except urllib.error.HTTPError as error:
    sys.exit(f"not ready: {error.read().decode().strip()}")
except OSError as error:
    sys.exit(f"the broker does not answer: {error}")
