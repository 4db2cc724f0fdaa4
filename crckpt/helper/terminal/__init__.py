"""New terminals for restored trees: the holder, a small process that holds one, and `crckpt attach`, its client."""
