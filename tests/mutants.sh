#!/usr/bin/env bash
# Breaks the core one line at a time and expects the simulator to notice: each mutant of
# tests/mutants/core.txt must fail within the seeds of `cargo test -p pelton-tests --test sim`.
# `bash tests/mutants.sh [NAME...]` runs all or the named ones, in a copy of the workspace; with
# MUTANTS_EVERY=N every Nth of them.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
list=$root/tests/mutants/core.txt
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$copy"
# One target directory for all, so that each mutant rebuilds only what it changes.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/mutants CARGO_TERM_COLOR=never RUST_BACKTRACE=0
survivors=()

# Replaces the only occurrence of OLD in FILE; anything else is an error of the list.
replace() { # FILE OLD NEW
  OLD=$2 NEW=$3 perl -0777 -i -pe '
    $count = () = /\Q$ENV{OLD}\E/g;
    if ($count != 1) { print STDERR "found $count times: $ENV{OLD}\n"; exit 3 }
    s/\Q$ENV{OLD}\E/$ENV{NEW}/' "$copy/$1"
}

try() { # NAME FILE OLD NEW
  local name=$1 file=$2 began log seed
  cp "$copy/$file" "$copy/original"
  replace "$file" "$3" "$4" || { echo "mutants: $name does not fit $file" >&2; exit 3; }
  log=$copy/$name.log
  (cd "$copy" && cargo test -q --locked -p pelton-sim --test seeds --no-run) >"$log" 2>&1 ||
    { cat "$log" >&2; echo "mutants: $name does not compile" >&2; exit 3; }
  began=$(date +%s%N)
  if (cd "$copy" && cargo test -q --locked -p pelton-sim --test seeds -- every) >"$log" 2>&1; then
    survivors+=("$name")
    printf '%-44s NOT caught\n' "$name"
  else
    seed=$(grep -m1 '^seed ' "$log" || { cat "$log" >&2; exit 3; })
    printf '%-44s %5d ms  %.70s\n' "$name" $((($(date +%s%N) - began) / 1000000)) "$seed"
  fi
  cp "$copy/original" "$copy/$file"
}

number=0
# Four lines a mutant: name, file, old text, new text; blank lines and comments between them.
while IFS= read -r name; do
  [[ -n $name && $name != \#* ]] || continue
  IFS= read -r file && IFS= read -r old && IFS= read -r new
  if (($# == 0 && number++ % ${MUTANTS_EVERY:-1} == 0)) || [[ " $* " == *" $name "* ]]; then
    try "$name" "$file" "$old" "$new" </dev/null
  fi
done <"$list"
((${#survivors[@]} == 0)) || { echo "mutants: not caught: ${survivors[*]}" >&2; exit 1; }
