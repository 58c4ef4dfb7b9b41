"""The cost of a recorded run, and the load of a retry policy in models. The executor imports none of it."""
