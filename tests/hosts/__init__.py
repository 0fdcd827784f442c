"""Hosts: what a Trainer does with our optimizers is what a loop written by hand does."""

import pytest

HOSTS_OWN_WARNINGS = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (
        ".*LeafSpec:FutureWarning",  # Lightning 2.6 with torch 2.13
        ".*does not have many workers.*",
        ".*number of training batches .* is smaller than the logging interval.*",
        ".*is not resumable.*",
        ".*dirpath has changed.*",
    )
]
"""What hosts warn of in small tests without any fault of ours; a `pytestmark`."""
