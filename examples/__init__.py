"""Small client programs; each runs against a server started with `draftloop up`."""
