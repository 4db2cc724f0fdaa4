"""The source of a move: rounds, hand-over, the end of the tree here."""
