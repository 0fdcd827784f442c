"""Short loss curves of every optimizer; `python -m tests.golden` writes them anew."""
