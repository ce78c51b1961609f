"""One policy behind one socket, for programs that are no part of a run."""
