"""Example flows: ``revenue`` (six tasks), ``invoices`` (an API), ``graph`` (recorded workflows), ``demo`` (failures)."""
