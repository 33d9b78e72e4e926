"""Anthropic's Messages API, in which every message is a chat of the other API."""
