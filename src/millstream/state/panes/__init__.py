"""The state of windowed jobs: panes, rows of keys, and the windows computed from them."""
