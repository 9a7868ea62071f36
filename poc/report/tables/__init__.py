"""The tables of results.md, a file a topic."""
