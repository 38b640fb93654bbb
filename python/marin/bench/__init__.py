"""What is measured, and against whom: the commands of `marin bench`."""
