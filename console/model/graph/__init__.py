"""Layouts of the task graph: list, drawing, groups, silhouette. Pure."""
