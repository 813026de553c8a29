"""Does every command explain itself, and does a mistyped one get a suggestion?"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from llmtrace.cli import main, make_parser
from llmtrace.cli.completion import SHELLS
from llmtrace.cli.parser import Parser

ROOT = Path(__file__).resolve().parents[2]


def parsers(parser: Parser | None = None, path: str = "llmtrace") -> dict[str, Parser]:
    """Return every parser by the words that lead to it."""
    parser = parser or make_parser()
    found = {path: parser}
    for name, command in parser.commands.items():
        found |= parsers(command, f"{path} {name}")
    return found


PARSERS = parsers()


@pytest.fixture(params=PARSERS)
def path(request):
    """Return the words that lead to a parser."""
    return request.param


def test_help_begins_with_examples_and_ends_with_a_link(path):
    """Each example is of this command and is parsed; the link leads to a page."""
    parser = PARSERS[path]
    text = parser.format_help()
    page = re.search(r"\nDocs: (\S+?)(?:#\S+)?\n\Z", text)

    assert text.startswith(f"Examples:\n  {parser.examples[0]}\n")
    assert page
    assert (ROOT / page[1]).is_file()
    commands = [re.split(r" > |[;|)]", line.partition("<(")[2] or line)[0]
                for line in parser.examples]  # fmt: skip
    assert all(line.startswith("llmtrace") for line in commands)
    assert any(line.startswith(path) for line in commands)
    for line in commands:
        assert make_parser().parse_args(shlex.split(line)[1:]).command


def test_option_help_is_a_phrase_of_its_own(path):
    """No text begins in the middle of a sentence, or with an article."""
    wrong = re.compile(r"(?:of|where|how|as|what|which|whom?|a|an|default)\b")
    options = PARSERS[path].options

    assert all(option.help for option in options)
    assert [option.help for option in options if option.help and wrong.match(option.help)] == []


def test_the_help_command_prints_what_the_option_prints(path, capsys):
    """`llmtrace help budget suggest` is `llmtrace budget suggest --help`."""
    printed = []
    words = path.split()[1:]
    for arguments in (["help", *words], [*words, "--help"]):
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
        printed.append(capsys.readouterr().out)

    assert printed[0] == printed[1] != ""


@pytest.mark.parametrize(
    ("mistyped", "usage", "suggested"),
    [
        ("triag", "llmtrace", "triage"),
        ("help triag", "llmtrace", "triage"),
        ("budget sugest", "llmtrace budget", "suggest"),
        ("demo --secods 5", "llmtrace demo", "--seconds"),
        ("demo --secods=5", "llmtrace demo", "--seconds"),
        ("collect --data x", "llmtrace collect", "--data-dir"),
        ("triage serve --reprots x", "llmtrace triage serve", "--reports"),
        ("triage --lst 1h", "llmtrace triage", "--last"),
        ("slo rulez", "llmtrace slo", "rules"),
        ("dashboards export --out x --form files", "llmtrace dashboards export", "--format"),
        ("--verion", "llmtrace", "--version"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(mistyped, usage, suggested, capsys):
    """The usage is the command's own, and the exit status 2."""
    with pytest.raises(SystemExit, match="2"):
        main(mistyped.split())
    printed = capsys.readouterr()

    assert printed.out == ""
    assert printed.err.startswith(f"usage: {usage} [-h]")
    assert f"{usage}: error: " in printed.err
    assert f"Did you mean '{suggested}'?" in printed.err


@pytest.mark.parametrize("words", ["top --every 3", "demo --sec 5", "demo --json x", "version x"])
def test_other_unknown_words_get_none(words, capsys):
    """Neither old names nor abbreviations are accepted."""
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    printed = capsys.readouterr().err

    assert "error: unknown " in printed
    assert f"Try 'llmtrace {words.split()[0]} --help'." in printed


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["budget"], "give one of check, suggest, report"),
        (["slo"], "give one of rules, engines, sloth, openslo"),
        (["compare"], "give BEFORE and AFTER"),
        (["dashboards", "import", "--url", "http://grafana"], "give --token-file"),
    ],
)
def test_what_is_missing_is_named(words, wanted, capsys):
    """By what can be typed in its place, where that is known."""
    with pytest.raises(SystemExit):
        main(words)

    assert f"error: {wanted}\n" in capsys.readouterr().err


def test_a_folder_without_its_option_gets_it(tmp_path, capsys):
    """A case given to triage without `--case`, as one gives a file, is answered with it."""
    with pytest.raises(SystemExit, match="2"):
        main(["triage", str(tmp_path)])

    assert f"use --case {tmp_path} for the folder of a case" in capsys.readouterr().err


def test_a_file_without_its_option_gets_it(tmp_path, capsys):
    """As a folder does."""
    (path := tmp_path / "rows.jsonl").touch()
    with pytest.raises(SystemExit, match="2"):
        main(["triage", str(path)])

    assert f"use --rows {path} for a file of rows" in capsys.readouterr().err


def test_commands_are_listed_in_groups():
    """Every command is in one, in the order of their use."""
    parser = make_parser()
    text = parser.format_help()
    titles = re.findall(r"(?m)^([A-Z]\w+):$", text)

    assert titles == ["Examples", "Start", "Look", "Investigate", "Operate", "Develop"]
    assert all(len(re.findall(rf"(?m)^  {name} +\w", text)) == 1 for name in parser.commands)


@pytest.mark.parametrize("position", ["before", "after"])
def test_a_source_is_given_before_or_after_serve(position):
    """With the same result."""
    source = ["--url", "http://collector:1", "--token-file", "token"]
    words = ["triage", *source, "serve"] if position == "before" else ["triage", "serve", *source]
    options = make_parser().parse_args(words)

    assert (options.url, options.token_file, options.case) == (source[1], Path("token"), None)


def test_two_sources_are_rejected_on_either_side_of_serve(capsys):
    """An ignored option would be a triage of other data."""
    assert main(["triage", "--case", "x", "serve", "--url", "http://collector:1"]) == 2
    assert "--case and --url exclude each other" in capsys.readouterr().err


def test_what_is_of_one_triage_is_not_for_serve(capsys):
    """It would be ignored without a word."""
    assert main(["triage", "--last", "1h", "serve"]) == 2
    assert "--last is of one triage: not with serve" in capsys.readouterr().err
    assert main(["triage", "--where", "model=m", "serve"]) == 2


def script(shell, capsys) -> str:
    """Return the completion of a shell."""
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["tri"], ["triage"]),
        (["budget", ""], ["check", "suggest", "report"]),
        (["budget", "suggest", "--to"], ["--total"]),
        (["triage", "--metric", "t"], ["ttft", "tpot"]),
        (["triage", "--at", "x", "serve", "--rep"], ["--reports"]),
        (["slo", ""], ["rules", "engines", "sloth", "openslo"]),
        (["waterfall", ""], []),
        (["demo", "--fault", "gpu_t"], ["gpu_throttle"]),
        (["simulate", "--fault", "gpu_t"], ["gpu_throttle"]),
        (["help", "tri"], ["triage"]),
        (["demo", "--rows-out", "pyproject.t"], ["pyproject.toml"]),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_values(typed, expected, capsys):
    """And files, where an option takes one."""
    words = " ".join(map(shlex.quote, ["llmtrace", *typed]))
    program = f"""{script("bash", capsys)}
COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _shtab_llmtrace
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, check=True, timeout=30
    )

    assert done.stdout.split() == expected
    assert done.stderr == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_reads_its_completion(shell, tmp_path, capsys):
    """Its own check of syntax finds nothing."""
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    path = tmp_path / "script"
    path.write_text(script(shell, capsys))
    done = subprocess.run(
        [shell, "-n", path], capture_output=True, text=True, check=False, timeout=30
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_fish_is_given_every_option(capsys):
    """Each with the commands it belongs to."""
    text = script("fish", capsys)

    assert "'_shtab_llmtrace_using budget suggest' -l total -x" in text
    assert text.count('-l fault -xka "') == len(("demo", "simulate"))
    assert '-l metric -xka "ttft tpot e2e render"' in text
    options = {
        name for parser in PARSERS.values() for option in parser.options
        for name in option.option_strings if name.startswith("--")
    }  # fmt: skip
    assert options - {f"--{name}" for name in re.findall(r" -l (\S+)", text)} == set()
