"""Helpers: processes that outlive the command, or the call, that started them. One way to start, ask and find them.

`kinds` lists them all, and names the files by which they are found again. `start` starts one and connects to it.
`channel` is the connection, one typed message a packet, and listens and connects at these files. What a helper does is
in a module of its own, here or where its subject is.
"""
