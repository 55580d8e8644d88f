#!/usr/bin/env bash
# Prints what the packages locks and db export, without the comments: docs/api.txt is this.
set -euo pipefail
cd "$(dirname "$0")/.."
for package in . ./db; do
    go doc -all "$package" | awk '
        NR == 1 { print; next }
        /^(CONSTANTS|VARIABLES|FUNCTIONS|TYPES)$/ { surface = 1; next }
        surface && NF && !/^    / && !/^\t+\/\// { sub(/[ \t]+\/\/.*/, ""); print }'
done
