"""Helpers: processes that outlive the command, or the call, that started them. One way to start, ask and find them.

`kinds` lists them all. `start` starts one and connects to it, `channel` is the connection: one typed message a packet.
`records` names the files by which a helper is found again, `sockets` listens there and connects. What a helper does is
in a module of its own, here or where its subject is.
"""
