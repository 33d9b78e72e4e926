"""Anthropic's Messages API; each request is translated to a chat of OpenAI's API."""
