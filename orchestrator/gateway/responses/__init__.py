"""OpenAI's Responses API: another way to say a chat, and another way to write its answer."""
