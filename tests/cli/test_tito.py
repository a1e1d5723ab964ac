"""`t1 tito stitch`: what a person is told of the calls of a foreign harness."""

import json

import pytest

from t1actors.cli.main import main
from t1actors.models.folder import model_folder
from t1actors.models.tokenizer import Tokenizer

FOLDER = "builtin:demo"
WORDS = Tokenizer.from_folder(model_folder(FOLDER))
MARKS = WORDS.special


def written(tmp_path, *calls):
    file = tmp_path / "calls.jsonl"
    file.write_text("".join(json.dumps(call) + "\n" for call in calls))
    return str(file)


def call(prompt, answer, **more):
    return {"prompt_ids": prompt, "sampled_ids": answer, **more}


@pytest.fixture
def calls():
    """Two calls whose history has the first answer in other ids."""
    prompt = [MARKS.user, *WORDS.encode("count"), MARKS.end, MARKS.assistant]
    spelled = [token for letter in "ls -la" for token in WORDS.encode(letter)]
    assert spelled != WORDS.encode("ls -la")
    shown = [*prompt, *WORDS.encode("ls -la"), MARKS.end, MARKS.tool, *WORDS.encode("rc 0"), MARKS.end, MARKS.assistant]
    return call(prompt, [*spelled, MARKS.end]), call(shown, [*WORDS.encode("submit"), MARKS.end])


def test_boundaries_and_shares_are_printed(calls, tmp_path, capsys):
    assert main(["tito", "stitch", written(tmp_path, *calls), "--tokenizer", FOLDER]) == 0
    first, *shares = capsys.readouterr().out.splitlines()
    assert first.startswith("turn 1      RETOKENIZED  ids [")
    assert [line.split("  ")[0] for line in shares] == [
        "retokenized later",
        "altered history",
        "placeholder rows",
        "left out",
    ]


def test_the_strict_rule_splits(calls, tmp_path, capsys):
    assert main(["tito", "stitch", written(tmp_path, *calls), "--tokenizer", FOLDER, "--rule", "strict"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "turn 1      SPLIT"


def test_trials_of_a_file_are_told_apart(calls, tmp_path, capsys):
    first, second = calls
    file = written(tmp_path, {**first, "trial": "a"}, {**first, "trial": "b"}, {**second, "trial": "a"})
    assert main(["tito", "stitch", file, "--tokenizer", FOLDER]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("trial", "turn"))][::2] == ["trial a", "trial b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt_ids": [1]}', "line 1: not a call: Object missing required field `sampled_ids`"),
        ('{"prompt_ids": [], "sampled_ids": [1]}', "line 1: a call has a prompt and an answer"),
        ('{"prompt_ids": [1], "sampled_ids": [4294967296]}', "line 1: not a call: Expected `int` <= 2147483647"),
        ("", "no calls"),
    ],
)
def test_a_file_that_holds_no_calls_is_refused_with_its_line(text, message, tmp_path, capsys):
    file = tmp_path / "calls.jsonl"
    file.write_text(text)
    assert main(["tito", "stitch", str(file), "--tokenizer", FOLDER]) == 1
    assert message in capsys.readouterr().err


def test_a_token_that_the_tokenizer_does_not_have_is_refused(calls, tmp_path, capsys):
    file = written(tmp_path, *calls)
    assert main(["tito", "stitch", file, "--tokenizer", FOLDER, "--stop", "<|nothing|>"]) == 2
    assert "'<|nothing|>' is no token of this tokenizer" in capsys.readouterr().err
    assert main(["tito", "stitch", file, "--tokenizer", str(tmp_path)]) == 2
