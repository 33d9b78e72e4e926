"""`draftloop batch`: a file of requests, answered into a file of answers."""
