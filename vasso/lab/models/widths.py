"""How many channels does a narrower network have?"""

from __future__ import annotations


def scaled(channels: float, width: float) -> int:
    """Channels times width, rounded, at least one.

    Args:
        channels: of the network as published.
        width: 1 for that, less for a narrower one.

    Returns:
        How many channels.

    Example:
        >>> scaled(64, 0.25), scaled(64, 0.001)
        (16, 1)
    """
    return max(1, round(channels * width))
