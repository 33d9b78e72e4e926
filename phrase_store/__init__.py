"""The phrase store: short runs of tokens that followed a context, remembered and shared.

A library, not a service: each process holds its own bounded index in memory, and processes exchange
phrases through a shared log. The only package that may import a Redis client; it never imports
torch.
"""
