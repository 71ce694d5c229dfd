"""Other libraries: their logs become stores, Ponder's tasks become their environments, results go
to their trackers.
"""
