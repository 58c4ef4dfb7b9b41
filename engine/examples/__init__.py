"""Flows to try: ``revenue`` (document 003's DAG), ``graph`` (any recorded workflow), ``demo`` (every failure mode)."""
