"""The gate of a move: find what prevents it, before anything is touched on either host.

The source asks `questions` about its live tree. The destination surveys its host, and judges: it makes an `ImageTree`
of the questions (`live_tree`), and gives it to the judge of restores. So the gate and the preflight of the later
restore cannot disagree, even if the two hosts have different releases of crckpt.

A live tree cannot be asked everything. These are found only by the preflight that the destination runs on the first
round's checkpoint, before the tree is frozen for long:

- signals at the end of a parent (PR_SET_PDEATHSIG), and guard pages: only CRIU's images show them
- Landlock, PR_SET_MDWE and locked maps: only the processes themselves can be asked, which stops them for a moment
- reserved huge pages of each size, and memory that is shared between processes by fork
- space for deleted files that a restore makes again
- what changes between the questions and the freeze: new files, sockets and processes
- paths of unix sockets that must be bound, and security modules' rules: only a restore finds these
"""
