"""A process that claims runs as fast as it can: python -m tests.fleet.claim_race URL TRIES MOST."""

from __future__ import annotations

import sys
import time

from holdfast import open_store
from holdfast.fleet.claims import PostgresClaims, Wanted
from holdfast.fleet.queues import is_postgres


def main(url: str, tries: int, most: int) -> None:
    """Claim, look how many runs are claimed by anybody, finish them, and print which they were."""
    store = open_store(url)
    assert is_postgres(store)
    claims = PostgresClaims(store, Wanted())
    for _ in range(tries):
        found = claims.claim(10, ())
        with store.transaction() as connection:
            row = connection.execute("SELECT count(*) FROM run WHERE claim IS NOT NULL").fetchone()
        assert row is not None and row[0] <= most, f"{row[0]} runs are claimed at once"
        for claim in found:
            print(claim.run)
            time.sleep(0.002)
            store.delete(claim.run)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
