"""Read what preflight needs to know of a live tree, one file for each subject. Nothing is stopped or changed."""
