"""Every preset, every base, every promise."""
