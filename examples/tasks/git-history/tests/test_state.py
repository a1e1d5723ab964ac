"""What /app/orchard holds. Its objects and refs are copied first: the configuration and hooks of its own are not asked."""

import functools
import os
import shutil
import subprocess
import tempfile

REPOSITORY = "/app/orchard"
KEY = b"b3JjaGFyZC1nYXRlLTc3MTM"
ILSE, BRAM = "ilse@orchard.example", "bram@orchard.example"
SAID = """01 ilse torus gate was left open
02 ilse the key of torus is in the history
04 ilse torus needs a new key
07 ilse ask ilse about torus
"""
COMMITS = [
    ("list the trees of row 1", ILSE, "1700000000"),
    ("plan the year", BRAM, "1700086400"),
    ("deploy from the gate house", BRAM, "1700172800"),
    ("count the trees of a row", ILSE, "1700259200"),
    ("add row 2", ILSE, "1700345600"),
    ("the gate has no key any more", BRAM, "1700432000"),
    ("water in summer", ILSE, "1700518400"),
]
LAST = {
    "count.sh": "d97ba6894b3263e5269ea0992aa1cac9191196ad",
    "deploy.sh": "d41f15acb53c10346b53956ae7277d4aaa940521",
    "plan.txt": "1ee61864b8ee356eeaa6c55a5171ac0ed9b25040",
    "trees.csv": "9b2748b8549861c3b67d0f53306516baa22777dd",
}


@functools.cache
def copied():
    """The objects and refs in a repository of our own."""
    source = f"{REPOSITORY}/.git"
    place = f"{tempfile.mkdtemp()}/copy.git"
    git("init", "-q", "--bare", place, place="/")
    for name in ("objects", "refs", "packed-refs", "HEAD"):
        path, target = f"{source}/{name}", f"{place}/{name}"
        assert not os.path.islink(path), f"{path} is a link"
        if os.path.isdir(path):
            shutil.copytree(path, target, symlinks=True, dirs_exist_ok=True)
        elif os.path.exists(path):
            shutil.copyfile(path, target)
    borrowed = f"{place}/objects/info/alternates"
    assert not os.path.lexists(borrowed), "it borrows objects of another repository"
    return place


def git(*arguments, place=None):
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }
    done = subprocess.run(["git", *arguments], cwd=place or copied(), env=env, capture_output=True, timeout=20)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}"
    return done.stdout


def main_commits():
    """(id, subject, author, date) of main, first to last."""
    lines = (
        git("log", "--reverse", "--format=%H%x09%s%x09%ae%x09%at", "main", "--").decode(errors="replace").splitlines()
    )
    return [tuple(line.split("\t")) for line in lines]


def files_of(commit):
    lines = git("ls-tree", "-r", commit).decode(errors="replace").splitlines()
    return {line.partition("\t")[2]: line.split()[2] for line in lines}


def test_what_was_said_of_the_gate():
    with open("/app/sefel.txt") as file:
        assert file.read(1 << 16) == SAID


def test_main_has_the_last_state():
    assert files_of("main") == LAST


def test_every_author_and_date_is_kept():
    assert [commit[1:] for commit in main_commits() if commit[1] != "slip"] == COMMITS


def test_the_key_is_in_no_commit_of_main():
    commits = main_commits()
    assert len(commits) >= len(COMMITS)
    for commit in commits:
        assert "deploy.key" not in files_of(commit[0]), f"{commit[1]} has it"


def test_the_key_is_in_no_object_that_is_left():
    assert len(main_commits()) >= len(COMMITS)
    assert KEY not in git("cat-file", "--batch-all-objects", "--batch")


def test_the_slips_are_folded_into_what_they_mend():
    commits = main_commits()
    assert [commit[1] for commit in commits] == [subject for subject, *_ in COMMITS]
    assert files_of(commits[3][0])["count.sh"] == LAST["count.sh"]
    assert files_of(commits[4][0])["trees.csv"] == LAST["trees.csv"]


def test_release_tag_is_on_the_last_commit():
    assert git("rev-parse", "v1.0^{commit}") == git("rev-parse", "main")
    assert files_of("v1.0") == LAST


def test_only_main_is_left():
    assert git("for-each-ref", "--format=%(refname)", "refs/heads", "refs/remotes").split() == [b"refs/heads/main"]
