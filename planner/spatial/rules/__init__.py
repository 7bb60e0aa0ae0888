"""Rules by kind of operation, one file each; `table.py` has all of them by the operation's name."""
