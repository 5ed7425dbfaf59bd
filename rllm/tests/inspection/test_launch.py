"""Launch scripts, read and never run."""

from __future__ import annotations

import subprocess

import pytest
from expecting import expect_error

from rllm.inspection.launch import Launch, read_launch
from rllm_core.errors import ConfigError


def launch(before: str = "", words: str = "a.b=1") -> Launch:
    return read_launch(f"{before}\npython3 -m verl.trainer.main_ppo {words}\n", "run.sh")


def texts(before: str, words: str) -> list[str]:
    return [word.text for word in launch(before, words).words]


WORDS = (
    ("N=4", "a.b=${N}x", "a.b=4x"),
    ("N=4", "a.b='$N'", "a.b=$N"),
    ("N=4", 'a.b="$N m"', "a.b=4 m"),
    ("N=4", 'a.b="it\'s $N"', "a.b=it's 4"),
    ("N=4", r"a.b=\$N", "a.b=$N"),
    ("N=4; M=$N", "a.b=$M", "a.b=4"),
    ("N=4; N=5", "a.b=$N", "a.b=5"),
    ("N=4\nM=$((N * (1024 + 1) / 2))", "a.b=$M", "a.b=2050"),
    ("", "a.b=${N:-7}", "a.b=7"),
    ('D=${D:-"${E:-x}/y"}', "a.b=$D", "a.b=x/y"),
    ('D="${D:-x y}"', "a.b='[\"'\"$D\"'\"]'", 'a.b=["x y"]'),
    (': "${N:=7}"', "a.b=$N", "a.b=7"),
    ("", "a.b=${1:-first}", "a.b=first"),
    ("N=4", "a.b=x${N:+:$N}", "a.b=x:4"),
    ("", "a.b=$HOME/data", "a.b=${oc.env:HOME}/data"),
    ("", 'a.b="${HOME:?is not set}"', "a.b=${oc.env:HOME}"),
    ("", "a.b=['x','y']", "a.b=[x,y]"),
    ("", "a.b=cost$", "a.b=cost$"),
)
"""What a script sets before, a word that it writes, and what the shell makes of it."""


def test_word_equals_the_expansion_of_the_shell() -> None:
    for before, word, read in WORDS:
        assert texts(before, word) == [read]


def test_bash_reads_the_word_the_same() -> None:
    for before, word, read in WORDS:
        done = subprocess.run(
            ["bash", "-c", f"{before}\nprintf '%s|' {word}"],
            env={"HOME": "H"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{read.replace('${oc.env:HOME}', 'H')}|"


def test_continuations_comments_and_redirections_are_no_words() -> None:
    script = """
    # python3 -m verl.trainer.main_ppo old.key=1 \\
    A=1  # a variable
    python3 -m verl.trainer.main_ppo --config-name='x.yaml'\\
        a.b=$A \\
        c.d=2 2>&1 | tee "$LOG"
    echo a.b=3 > done.txt
    """
    read = read_launch(script, "run.sh")
    assert [word.text for word in read.words] == ["--config-name=x.yaml", "a.b=1", "c.d=2"]
    assert read.options == {"--config-name": "x.yaml"}
    assert [word.text for word in read.overrides] == ["a.b=1", "c.d=2"]
    assert read.program == "verl.trainer.main_ppo"

    read = launch("", "--config-name other_trainer a.b=1")
    assert read.options == {"--config-name": "other_trainer"}
    assert [word.text for word in read.overrides] == ["a.b=1"]


def test_arrays_are_their_words() -> None:
    before = """
    N=4
    DATA=(
        data.x=$N   # four
        data.y="two words"
    )
    DATA+=(data.z=3)
    """
    assert texts(before, '"${DATA[@]}" ${DATA[@]} "$@" ""') == [
        "data.x=4",
        "data.y=two words",
        "data.z=3",
        "data.x=4",
        "data.y=two",
        "words",
        "data.z=3",
        "",
    ]


@pytest.mark.parametrize(
    ("before", "word", "why"),
    [
        ("", "a.b=$(date)", "output"),
        ("N=$(nproc)", "a.b=$N", "output"),
        ("if [ -d /x ]; then\n  N=1\nelse\n  N=2\nfi", "a.b=$N", "`N`"),
        ("for N in 1 2; do echo $N; done", "a.b=$N", "`N`"),
        ("N=a/b", "a.b=${N##*/}", "`${N##*/}`"),
        ("", "a.b=$((N * 2))", "`N * 2`"),
    ],
)
def test_values_known_at_run_time_are_reported(before: str, word: str, why: str) -> None:
    (read,) = launch(before, f"{word} c.d=1").words[:1]
    assert read.text == word
    assert why in read.undecided


@pytest.mark.parametrize(
    "command",
    [
        "python train.py a.b=1",
        "torchrun --nproc_per_node=2 -m pkg.train a.b=1",
        "ray job submit --no-wait -- python3 -m pkg.train a.b=1",
        "if true; then python train.py a.b=1; fi",
        'train() {\n  python train.py a.b=1 "$@"\n}\ntrain',
        "cat > x.json <<EOF\npython old.py a.b=2\nEOF\npython train.py a.b=1",
        "python train.py rllm/backend=tinker a.b=1",
    ],
)
def test_the_training_is_found(command: str) -> None:
    assert "a.b=1" in [word.text for word in read_launch(command, "run.sh").words]


def test_script_without_exactly_one_training_is_refused() -> None:
    for script in ("python make_data.py --out=x\n", "A=(", "A=('", "a <<EOF", "((", "${", "A=${B", "\\"):
        with expect_error(ConfigError, "no-training-command", "run.sh"):
            read_launch(script, "run.sh")
    with expect_error(ConfigError, "several-training-commands", "starts 2 trainings"):
        read_launch("python a.py a.b=1\npython b.py a.b=1\n", "run.sh")
