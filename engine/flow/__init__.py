"""Flow definitions: the ``Flow`` class, its options, and loading a flow file."""
