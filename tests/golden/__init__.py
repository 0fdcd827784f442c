"""Short loss curves of every preset; `python -m tests.golden` writes them anew."""
