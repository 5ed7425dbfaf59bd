"""Rows of data in one normal form: messages, tools, and the check of a whole data source."""
