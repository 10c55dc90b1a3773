"""Elastic training: states that can be put back, and outlive their process.

What all bindings have in common; each of them has its own states in its `elastic`.
"""
