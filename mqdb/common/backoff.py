"""The pauses between attempts to connect."""

import random
from collections.abc import Iterator
from typing import Final

FIRST_PAUSE_SECONDS: Final = 0.1


def pauses(longest_seconds: float) -> Iterator[float]:
    """Endless pauses in seconds: doubling, and shortened at random so that clients do not all retry at once."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 2, longest_seconds)
