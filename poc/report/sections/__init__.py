"""One file per section of a page: a function of the results that returns its blocks, none if it has nothing to show."""
