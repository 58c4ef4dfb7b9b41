"""What a recorded run cost, and what it would have been under another policy. The executor imports none of it."""
