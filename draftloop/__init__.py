"""Draftloop: lossless speculative decoding as services. This package is the shared library."""

__version__ = "0.1.0"
