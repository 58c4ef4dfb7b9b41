"""Example flows: ``first_flow``, ``revenue`` (six tasks), ``invoices`` (an API), ``demo`` (each kind of failure)."""
