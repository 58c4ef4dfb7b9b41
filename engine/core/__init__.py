"""Decisions: values in, values out; no clock, disk, event loop, thread or random numbers of its own.

``engine/README.md`` says where each decision is.
"""
