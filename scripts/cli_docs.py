#!/usr/bin/env python3
"""Writes man pages and shell completions from the help of a moesaic program, so that they say what it says:

    cli_docs.py PROGRAM DIRECTORY [YYYY-MM-DD]

DIRECTORY gets share/man/man1/*.1, and completions where the shells of a distribution look for them:
share/bash-completion/completions/moesaic, share/zsh/vendor-completions/_moesaic,
share/fish/vendor_completions.d/moesaic.fish. The date is that of the pages. Standard library only.
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

OPTION = re.compile(r"^  (?:-(\w), )?--([a-z0-9-]+)(?: (\S+(?: \S+)*?))?(?:\s{2,}(\S.*))?$")
COMMAND = re.compile(r"^  (\S+(?: \S+)?)\s{2,}(\S.*)$")
FILES = {"FILE", "TRACE", "RULE|FILE"}
DIRECTORIES = {"DIR", "DIR[,DIR]"}
PATHS = {"DIR|FILE", "DIR|FILE|ID", "FILE|DIR"}


@dataclasses.dataclass
class Option:
    name: str
    short: str
    value: str  # "" for a flag
    help: str

    def kind(self):
        """What its value is completed with: "file", "dir", "path", words, or None for nothing."""
        if self.value in FILES:
            return "file"
        if self.value in DIRECTORIES:
            return "dir"
        if self.value in PATHS:
            return "path"
        words = self.value.split("|")
        if len(words) > 1 and all(re.fullmatch(r"[a-z0-9_-]+", word) for word in words):
            return " ".join(words)
        return None


@dataclasses.dataclass
class Command:
    name: str  # "trace record", "" for the program itself
    summary: str
    usage: str = ""
    description: list = dataclasses.field(default_factory=list)  # paragraphs
    examples: list = dataclasses.field(default_factory=list)
    commands: list = dataclasses.field(default_factory=list)  # (name, summary) below it
    sections: dict = dataclasses.field(default_factory=dict)  # heading -> options
    notes: list = dataclasses.field(default_factory=list)  # paragraphs behind the options

    def options(self):
        return [option for options in self.sections.values() for option in options]

    def page(self):
        return "-".join(["moesaic", *self.name.split()])


def ask(program, *words):
    environment = {"PATH": os.environ.get("PATH", ""), "COLUMNS": "110", "LC_ALL": "C.UTF-8"}
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def paragraphs(text):
    return [" ".join(block.split()) for block in re.split(r"\n\s*\n", text) if block.strip()]


def read_help(name, summary, text):
    """The help of a command, taken apart. Every line of it must be understood."""
    command = Command(name, summary)
    heading = ""
    plain = []
    for line in text.splitlines():
        if line.startswith("Usage: "):
            command.usage = line[len("Usage: ") :]
        elif re.fullmatch(r"[A-Z][^.]*:", line):
            heading = line[:-1]
        elif heading in ("Examples", "Start here") and line.startswith("  "):
            command.examples.append(line.strip())
        elif heading == "Commands" and line.startswith("  "):
            command.commands.append(COMMAND.match(line).groups())
        elif line.startswith("  -"):
            short, option, value, said = OPTION.match(line).groups()
            command.sections.setdefault(heading, []).append(Option(option, short or "", value or "", said or ""))
        elif line.startswith("      ") and heading in command.sections:
            option = command.sections[heading][-1]
            option.help = f"{option.help} {line.strip()}".strip()
        elif line.startswith(" "):
            raise SystemExit(f"cli_docs: the help of `moesaic {name}` has a line that is not understood: {line}")
        else:
            if line and heading:
                heading = ""
                plain.append("\n\f\n")  # what follows stands behind the lists
            plain.append(line)
    before, _, after = "\n".join(plain).partition("\f")
    command.description, command.notes = paragraphs(before), paragraphs(after.replace("\f", ""))
    return command


def read_program(program):
    """The program itself first, then its commands, those of commands behind them."""
    root = read_help("", "serve mixture-of-experts models larger than fast memory", ask(program, "--help"))
    commands = [root]
    names = list(root.commands)
    for name, summary in names:
        command = read_help(name, summary, ask(program, *name.split(), "--help"))
        commands.append(command)
        names += [(f"{name} {below}", its) for below, its in command.commands]
    return ask(program, "version").split()[1], commands


# Man pages.


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in (".", "'") else text


def man_page(command, commands, version, date):
    out = [
        f'.TH {command.page().upper().replace("-", chr(92) + "-")} 1 "{date}" "moesaic {version}" "User Commands"',
        ".SH NAME",
        f"{roff(command.page())} \\- {roff(command.summary[:1].lower() + command.summary[1:])}",
        ".SH SYNOPSIS",
        f".B {roff(command.usage)}",
        ".SH DESCRIPTION",
    ]
    for paragraph in command.description:
        out += [roff(paragraph), ".PP"]
    if command.commands:
        out.append(".SH COMMANDS")
        for name, summary in command.commands:
            out += [".TP", f".B {roff(name)}", roff(summary)]
    if command.sections:
        out.append(".SH OPTIONS")
    for heading, options in command.sections.items():
        out.append(f".SS {roff(heading)}")
        for option in options:
            names = [f"\\fB\\-{option.short}\\fR"] if option.short else []
            value = f" \\fI{roff(option.value)}\\fR" if option.value else ""
            names.append(f"\\fB\\-\\-{roff(option.name)}\\fR{value}")
            out += [".TP", ", ".join(names), roff(option.help)]
    for paragraph in command.notes:
        out += [".PP", roff(paragraph)]
    if command.examples:
        out += [".SH EXAMPLES", ".nf", *(roff(example) for example in command.examples), ".fi"]
    others = [other.page() for other in commands if other is not command and (not command.name or not other.name)]
    if " " in command.name:
        others.append("moesaic-" + command.name.split()[0])
    if others:
        out += [".SH SEE ALSO", "\n".join(f".BR {roff(page)} (1)," for page in sorted(others)).rstrip(",")]
    return "\n".join(line for line in out if line) + "\n"


# Completions.


def values_of(commands):
    """(command names or None for all, option, kind): what the values of options are completed with."""
    uses = {}
    for command in commands:
        for option in command.options():
            if option.value:
                uses.setdefault(option.name, {})[command.name] = option
    rows = []
    for name, by_command in uses.items():
        kinds = {option.kind() for option in by_command.values()}
        if len(kinds) == 1:
            rows.append((None, next(iter(by_command.values())), kinds.pop()))
        else:
            rows += [([command], option, option.kind()) for command, option in by_command.items()]
    return rows


BASH = """\
# Completion of moesaic {version} for bash, written by scripts/cli_docs.py from its help.
_moesaic() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command= word i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{command:+$command }}${{COMP_WORDS[i]}}"
        case $word in
            {names}) command=$word ;;
            *) break ;;
        esac
    done
    # --name=value comes as three words.
    if [ "$cur" = = ]; then
        cur=
    elif [ "$prev" = = ]; then
        prev=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    case "$command:$prev" in
{values}
    esac
    if [[ $cur == -* ]]; then
        case $command in
{flags}
        esac
        return
    fi
    case $command in
{commands}
    esac
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen -f -- "$cur"))
}}
complete -F _moesaic moesaic
"""


def bash(version, commands):
    kinds = {"file": "compgen -f", "dir": "compgen -d", "path": "compgen -f"}
    values = []
    for owners, option, kind in values_of(commands):
        pattern = "|".join(
            f'"{owner}:{flag}"' if owners else f'*":{flag}"'
            for owner in owners or [""]
            for flag in [f"--{option.name}"] + ([f"-{option.short}"] if option.short else [])
        )
        if kind is None:
            action = "return"
        elif kind in kinds:
            action = f'compopt -o filenames 2>/dev/null; COMPREPLY=($({kinds[kind]} -- "$cur")); return'
        else:
            action = f'COMPREPLY=($(compgen -W "{kind}" -- "$cur")); return'
        values.append(f"        {pattern}) {action} ;;")
    flags, below = [], []
    for command in commands:
        words = " ".join(f"--{option.name}" for option in command.options()) or "--help --version"
        flags.append(f'            "{command.name}") COMPREPLY=($(compgen -W "{words}" -- "$cur")) ;;')
        words = command_words(command, commands)
        if words:
            ends = "return" if not command.name or command.commands else ":"
            below.append(f'        "{command.name}") COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$cur")); {ends} ;;')
    return BASH.format(
        version=version,
        names="|".join(f'"{command.name}"' for command in commands if command.name),
        values="\n".join(values),
        flags="\n".join(flags),
        commands="\n".join(below),
    )


def command_words(command, commands):
    """The words that may follow a command's name: "serve" after "bench"."""
    prefix = command.name + " " if command.name else ""
    words = [other.name[len(prefix) :] for other in commands if other.name and other.name.startswith(prefix)]
    return [word for word in words if " " not in word]


def short_help(text):
    """The first sentence, without the default and the variable."""
    text = re.sub(r"\s*\[(?:default|env)[^]]*\]$", "", text)
    return re.split(r"(?<=[a-z)`])[.:;] ", text)[0].rstrip(".")


def zsh(version, commands):
    def quoted(text):
        return text.replace("'", "'\\''")

    def spec(option):
        said = quoted(re.sub(r"([\[\]:\\])", r"\\\1", short_help(option.help)))
        action = {"file": "_files", "dir": "_files -/", "path": "_files", None: " "}.get(
            option.kind(), f"({option.kind()})"
        )
        value = f":{quoted(option.value)}:{action}" if option.value else ""
        specs = [f"'*--{option.name}{'=' if option.value else ''}[{said}]{value}'"]
        if option.short:
            specs.append(f"'*-{option.short}{'+' if option.value else ''}[{said}]{value}'")
        return specs

    cases = []
    for command in commands:
        if not command.options():
            continue
        lines = [line for option in command.options() for line in spec(option)]
        cases.append(
            f"    '{command.name}')\n      _arguments -S \\\n        "
            + " \\\n        ".join([*lines, "'*:file:_files'"])
            + " ;;"
        )
    described = []
    for command in commands:
        words = command_words(command, commands)
        if words:
            prefix = command.name + " " if command.name else ""
            by_name = {other.name: other.summary for other in commands}
            rows = "\n".join(f"        '{word}:{quoted(by_name[prefix + word])}'" for word in words)
            described.append(f"    '{command.name}')\n      commands=(\n{rows}\n      ) ;;")
    names = "|".join(f"'{command.name}'" for command in commands if command.name)
    return f"""\
#compdef moesaic
# Completion of moesaic {version} for zsh, written by scripts/cli_docs.py from its help.
_moesaic() {{
  local command= word
  local -i used=1
  local -a commands
  while ((used + 1 < CURRENT)); do
    word="${{command:+$command }}${{words[used + 1]}}"
    case $word in
      {names}) command=$word; used+=1 ;;
      *) break ;;
    esac
  done
  case $command in
{chr(10).join(described)}
  esac
  if ((used + 1 == CURRENT && $#commands)) && [[ $PREFIX != -* ]]; then
    _describe command commands
    [[ -n $command && $command != trace ]] || return
  fi
  # What _arguments sees are the words behind the command.
  words=("$command" "${{(@)words[used + 1, -1]}}")
  CURRENT=$((CURRENT - used + 1))
  case $command in
{chr(10).join(cases)}
  esac
}}
_moesaic "$@"
"""


def fish(version, commands):
    def quoted(text):
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = []
    by_name = {command.name: command for command in commands}
    for command in commands:
        here = f"-n '__moesaic_is \"{command.name}\"'"
        prefix = command.name + " " if command.name else ""
        for word in command_words(command, commands):
            files = "" if command.name and command.options()[1:] else " -f"
            lines.append(f"complete -c moesaic {here}{files} -a {word} -d {quoted(by_name[prefix + word].summary)}")
        for option in command.options():
            kind = option.kind()
            value = {"file": " -r", "path": " -r", "dir": " -x -a '(__fish_complete_directories)'", None: " -x"}.get(
                kind, f" -x -a {quoted(kind or '')}"
            )
            short = f" -s {option.short}" if option.short else ""
            lines.append(
                f"complete -c moesaic {here}{short} -l {option.name}{value if option.value else ''} "
                f"-d {quoted(short_help(option.help))}"
            )
    names = " ".join(quoted(command.name) for command in commands if command.name)
    return f"""\
# Completion of moesaic {version} for fish, written by scripts/cli_docs.py from its help.
function __moesaic_is --description 'Whether the words so far name this command'
    set -l found ''
    for word in (commandline -opc)[2..-1]
        set -l next (string trim "$found $word")
        contains -- "$next" {names}; or break
        set found $next
    end
    test "$found" = "$argv[1]"
end
{chr(10).join(lines)}
"""


def main(program, directory, date=""):
    version, commands = read_program(program)
    share = pathlib.Path(directory) / "share"
    files = {
        "bash-completion/completions/moesaic": bash(version, commands),
        "zsh/vendor-completions/_moesaic": zsh(version, commands),
        "fish/vendor_completions.d/moesaic.fish": fish(version, commands),
    }
    for command in commands:
        files[f"man/man1/{command.page()}.1"] = man_page(command, commands, version, date)
    for name, text in files.items():
        (share / name).parent.mkdir(parents=True, exist_ok=True)
        (share / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
