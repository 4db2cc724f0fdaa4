"""The destination of a move: answer the questions from stdin for this host and the store STORE (`answers.py STORE`)."""

import sys
from pathlib import Path

from crckpt.migrate.preflight.answers import answer
from crckpt.migrate.preflight.questions import decode_questions
from crckpt.migrate.wire.messages import encode
from crckpt.ops.context import Context


def main() -> None:
    """Write the answers to stdout."""
    questions = decode_questions(sys.stdin.buffer.read())
    sys.stdout.buffer.write(encode(answer(questions, Context(Path(sys.argv[1])))))


if __name__ == "__main__":
    main()
