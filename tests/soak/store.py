"""An S3 server behind a proxy that goes wrong at random, until its standard input is closed.

`python -m tests.soak.store SEED` prints the endpoints of both as JSON. A process of its own: it
keeps every object and request in memory, which must not count as the driver's.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from typing import Any

from tests.fault_proxy import FaultProxy
from tests.stores import running_store

# Seconds between two looks, and good requests between two faults: one request's retries, as the
# only traffic, must not meet one after another.
PAUSE = (0.1, 0.6)
GOOD = (3, 30)
FAULTS: tuple[dict[str, Any], ...] = (
    {"answer": (500, "InternalError")},
    {"answer": (503, "ServiceUnavailable")},
    {"answer": (503, "SlowDown")},
    {"cut": "request"},
    {"cut": "upload", "cut_at": 20},
    {"cut": "reply"},
    {"cut": "download", "cut_at": 5},
    {"delay": 0.5},
)


def main(seed: int) -> None:
    """Serve until the input ends."""
    ended = threading.Event()
    with running_store("moto") as store, FaultProxy(store.endpoint) as proxy:
        print(json.dumps({"store": store.endpoint, "proxy": proxy.endpoint}), flush=True)
        wrong = threading.Thread(target=go_wrong, args=(proxy, random.Random(seed), ended))
        wrong.start()
        sys.stdin.read()
        ended.set()
        wrong.join()


def go_wrong(proxy: FaultProxy, choose: random.Random, ended: threading.Event) -> None:
    """One fault after another, each met by one request of any kind."""
    rule = proxy.on(nth=choose.randint(*GOOD), times=1, **choose.choice(FAULTS))
    while not ended.wait(choose.uniform(*PAUSE)):
        proxy.seen.clear()
        if rule.hits:
            proxy.remove(rule)
            rule = proxy.on(nth=choose.randint(*GOOD), times=1, **choose.choice(FAULTS))


if __name__ == "__main__":
    main(int(sys.argv[1]))
