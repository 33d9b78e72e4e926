"""Reasoning before an answer: what a model thinks aloud, told apart from what it says."""
