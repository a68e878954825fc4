#!/usr/bin/env bash
# What `make demo` shows: a small trained mixture-of-experts model answers four kinds of prompts while
# only a quarter of its experts is in memory; the rest is read from disk when it is wanted.
set -euo pipefail
cd "$(dirname "$0")/.."
moesaic=${1:-build/release/bin/moesaic}
model=models/sample

bold="" dim="" reset=""
if [ -t 1 ] && [ "${TERM:-dumb}" != dumb ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' reset=$'\e[0m'
fi

demo() {
  local title=$1
  shift
  printf '\n%s━━━ %s%s\n' "$bold" "$title" "$reset"
  printf '%s$ moesaic run %s' "$dim" "$model"
  # Quoted as one would type it: words with anything special in quotes.
  local word
  for word in "$@"; do
    case $word in
      *[!A-Za-z0-9_./%=-]*) printf ' %s' "${word@Q}" ;;
      *) printf ' %s' "$word" ;;
    esac
  done
  printf '%s\n\n' "$reset"
  # The numbers come on standard error: one stream keeps them in order where output is a file.
  "$moesaic" run "$model" "$@" 2>&1 </dev/null
}

cat <<EOT
${bold}Moesaic${reset} serves mixture-of-experts models that are larger than fast memory.

The sample model is small (11 M parameters, trained on 21 M tokens, so it rambles), but it is a real
mixture of experts: 8 layers of 32 experts, 4 of them for each token. Here it may keep a quarter of
its experts in memory. The maps show which experts each text used: different kinds of text use
different ones.
EOT

settings=(--config demo --max-tokens 64 --temperature 0.7)
demo "A word problem (GSM8K), as a chat" \
  "Weng earns \$12 an hour for babysitting. Yesterday, she just did 50 minutes of babysitting. How much did she earn?" \
  "${settings[@]}" --seed 7 --stats
demo "A novel, continued" --raw "It was a cold and stormy night, and the old man" \
  "${settings[@]}" --seed 7 --stats
demo "Code, continued" --raw "class Tokenizer:
    def __init__(self, path):
        self.path = path
" "${settings[@]}" --seed 7 --stats
demo "An instruction, as a chat" "Give three tips for staying healthy." \
  "${settings[@]}" --seed 11 --stats

printf '\n%sNext%s\n' "$bold" "$reset"
next() { printf '  %-58s %s\n' "$moesaic $1" "$2"; }
next "run $model" "hold a conversation"
next "serve $model" "an OpenAI-compatible server on port 8000"
next "show $model" "sizes, and what fits into which memory"
next "run --help" "everything that can be set"
