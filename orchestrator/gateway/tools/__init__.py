"""Tools that a chat's model may call: how they are offered, and how calls are read."""
