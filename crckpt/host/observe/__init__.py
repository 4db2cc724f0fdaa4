"""Read what preflight needs to know about a live tree, one file for each topic. Nothing is stopped or changed."""
