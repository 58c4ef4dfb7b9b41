"""Flows to try: ``revenue`` (six tasks), ``graph`` (any recorded workflow), ``demo`` (every failure mode)."""
