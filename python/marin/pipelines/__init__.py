"""Runnable recipes: each module is a whole path that can be read from top to bottom."""
