"""The made-up words that tasks use for names and contents.

They are short (two syllables, sometimes a closing consonant) so that a tiny vocabulary can copy them, and no word
contains another: replacing, searching or lacking a word then never hits a different one by accident.
"""

from __future__ import annotations

from t1actors.tasks.draws import Draws


def _make_words(count: int) -> tuple[str, ...]:
    draws = Draws("words")
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words: list[str] = []
    while len(words) < count:
        word = draws.pick(syllables) + draws.pick(syllables) + draws.pick(["", "n", "r", "s", "l"])
        if not any(word in other or other in word for other in words):
            words.append(word)
    return tuple(sorted(words))


WORDS = _make_words(256)
