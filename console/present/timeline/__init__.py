"""The timeline: its axis, the bars of tasks and of groups, and the same in words."""
