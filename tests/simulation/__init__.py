"""Deterministic simulation: nights of the real executor on a virtual clock, with seeded dice and a scripted runner.

One process, no task processes, no sleeping: ``python -m tests.simulation --seeds 1000``.
"""
