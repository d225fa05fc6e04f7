"""All cases, or those whose names contain a word given: `python -m tests.models guard`."""

from __future__ import annotations

import sys
import time

from tests.models.cases import CASES
from tests.models.explorer import explore


def main(words: list[str]) -> int:
    """How many came out otherwise than they must."""
    failed = 0
    for case in CASES:
        if words and not any(word in case.name for word in words):
            continue
        began = time.monotonic()
        found = explore(case.model)
        agrees = case.agrees(found)
        failed += not agrees
        took = time.monotonic() - began
        verdict = "as it must" if agrees else "FAILED"
        print(f"{case.name}: {verdict} ({took:.0f} s)\n    {found}", flush=True)
    print(f"{failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
