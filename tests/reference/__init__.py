"""Slow, plain versions of the methods: equations and loops, no code of ours."""
