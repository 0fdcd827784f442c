"""The quality of adversaries: radius, friendliness, error of the slope, signal-to-noise ratio."""
