"""The timeline: its screen, its bars, the labels left of them, and the chart below them."""
