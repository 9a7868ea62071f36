"""Records of runs, and their journals on disk."""
