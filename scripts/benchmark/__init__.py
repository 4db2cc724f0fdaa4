"""The benchmark: compare crckpt with its peers in the same run on the same machine, and check its bounds.

Each group of rows is a module with a function `rows`. crckpt and its peer are measured in turn, so that a noisy machine
disturbs both. Medians are compared.
"""
