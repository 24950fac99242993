"""Rows and frames in a database. Knows no objects: values arrive and leave as bytes."""
