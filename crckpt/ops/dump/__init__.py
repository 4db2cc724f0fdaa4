"""The steps of a dump: `dump.py` runs them, `pre_dump.py` takes a round alone.

request: what the user asks. examine: what is known of the tree before it is touched. launch: CRIU is started early.
lineage: what the dump counts from. rounds, forecast: memory is copied while the tree runs.
plan: CRIU dumps the tree, and holds it frozen. checkpoint: the frozen tree is acted on, and the images are stored.
details: what CRIU's images lack. aftermath: what a failure leaves. result: what each step returns.
"""
