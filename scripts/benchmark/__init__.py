"""The benchmark: crckpt beside its peers, in the same run on the same machine, judged by bounds.

A group of rows is a module with a function `rows`. Ours and the peer's are measured in turn, so that a noisy machine
disturbs both; medians are compared.
"""
