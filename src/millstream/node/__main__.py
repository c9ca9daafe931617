"""``python -m millstream.node``: the node process."""

from millstream.node.process import main

main()
