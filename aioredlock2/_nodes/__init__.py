"""The kinds of node, one file each; the contract they keep is the head of `_node.py`."""
