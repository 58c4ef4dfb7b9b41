"""What commands print: lines of events, lists that follow a run, and the schemas of JSON lines."""
