"""Double-entry bookkeeping in a text file."""
