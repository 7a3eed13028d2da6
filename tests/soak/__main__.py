"""`python -m tests.soak --minutes 30 [--seed N] [--nights]`: see `soak` and `nights`.

Exit status 1 if it found a fault.
"""

from __future__ import annotations

import argparse
import random
import sys

from tests.soak.nights import soak_nights
from tests.soak.soak import soak


def main() -> int:
    """Soak, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--nights", action="store_true", help="kill whole nights instead")
    options = parser.parse_args()
    faults = (soak_nights if options.nights else soak)(options.minutes * 60, options.seed)
    for fault in faults:
        print(f"fault: {fault}")
    print("no fault was found" if not faults else f"seed {options.seed}: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
