"""The steps of a dump: `dump.py` runs them, `pre_dump.py` takes a round alone.

request: what the user asks. examine: what is known of the tree before it is touched. launch: CRIU is started early.
lineage, parent_images: what the dump counts from. pre_copy, rounds, forecast: memory is copied while the tree runs.
checkpoint, hold: CRIU dumps the tree, and the frozen tree is acted on. details, attributes, open_files: what CRIU's
images lack. commit: the images are stored. rehearse_held: they are restored in isolation. aftermath: what a failure
leaves. result: what each step returns.
"""
