"""Layouts of the task graph: rails, drawing, groups, matrix. Pure."""
