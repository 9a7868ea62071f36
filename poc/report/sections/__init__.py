"""Sections of the pages: functions of the results that return blocks, nothing if there is nothing to show."""
