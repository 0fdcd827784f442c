"""Integrations: one file for each training framework, which is imported only there."""
