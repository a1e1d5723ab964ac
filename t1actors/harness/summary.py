"""What a model is told when its context is to be summed up, and what it is given of that afterwards. Of every harness."""

REQUEST = (
    "There is no more room here. You go on in a new conversation, in which you are given the task again, the last output, "
    "what you write now, and nothing else. Write what you need to go on, as plain text: what was done, what was found out, "
    "what is left to do."
)
_SO_FAR = "What you wrote of your work so far:\n{summary}\n\nThe last output:\n{observation}"


def so_far(summary: str, observation: str) -> str:
    """What follows the task in a new chunk."""
    return _SO_FAR.format(summary=summary.strip(), observation=observation)
