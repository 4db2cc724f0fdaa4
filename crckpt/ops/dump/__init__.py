"""The steps of a dump: `dump.py` runs them, `pre_dump.py` takes a round alone.

request: what the user asks. launch: the root is found and held, and CRIU is started early.
examine: what is known of the tree before it is touched, and whether the job is its own.
lineage: what the dump counts from. rounds, forecast: memory is copied while the tree runs.
plan: CRIU dumps the tree, and holds it frozen. checkpoint: the frozen tree is acted on, and the images are stored.
details: what CRIU's images lack. reported: what a program could forge in them. aftermath: what a failure leaves.
result: what each step returns.
"""
