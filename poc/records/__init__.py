"""What came out of runs: on disk, and what it says."""
