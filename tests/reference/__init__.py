"""A model of final states, written from the documents' rules alone, and the flows on which it is compared."""
