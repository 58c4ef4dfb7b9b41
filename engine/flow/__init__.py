"""How people write DAGs: the flow, its options, and how a flow file is loaded."""
