"""Rows into batches: any batch by its number, in order, resumable on any number of readers."""

from marin.stream.batch import Batch, Batches, BatchRun
from marin.stream.cursor import Cursor
from marin.stream.stream import Stream

__all__ = ["Batch", "BatchRun", "Batches", "Cursor", "Stream"]
