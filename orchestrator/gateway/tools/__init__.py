"""Tools that a chat's model may call: how they are offered, and how its calls are read."""
