"""`draftloop batch`: answers a file of requests into a file of answers."""
