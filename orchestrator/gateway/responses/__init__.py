"""OpenAI's Responses API; each request is translated to a chat, and the chat's answer back."""
