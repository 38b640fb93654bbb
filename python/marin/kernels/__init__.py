"""Kernels: one folder per operation.

`reference` defines the meaning of an operation in plain JAX, `pallas_gpu` makes it fast on a GPU,
`api` carries the gradient and picks the implementation, `bench` measures.

Symbols: T tokens, K assignments per token, R rows of a buffer, w width of a row, m width inside an
expert, G groups (experts), B rows of one block.
"""
