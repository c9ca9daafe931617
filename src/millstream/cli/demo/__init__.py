"""The demo: a word count that is killed, grown and rebalanced while it runs, and stays exact."""
