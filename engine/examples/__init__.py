"""Example flows: ``revenue`` (six tasks), ``invoices`` (an API), ``graph`` (recordings), ``demo`` (failures)."""
