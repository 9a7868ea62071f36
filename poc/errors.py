"""Errors that are the user's to mend."""

from __future__ import annotations


class UserError(Exception):
    """A mistake in a recipe, an option or a file: one line that names it, what is allowed and how to mend it."""
