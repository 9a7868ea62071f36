"""The topics of the pages: a file each, with its prose, its tables and its figures."""
