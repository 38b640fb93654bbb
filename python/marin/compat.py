"""The one place for differences between JAX 0.10, 0.11 and 0.12."""
