"""Reasoning before an answer: separates what a model thinks from what it says."""
