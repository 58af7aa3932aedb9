#!/usr/bin/env bash
# Compare the results A and B, write everything into a folder, and exit with the status of the comparison: 1 if B is too slow.
# Usage: rules/compare.sh A B FOLDER [OPTION ...]; empty options are left out.
set -uo pipefail
a=$1 b=$2 folder=$3
shift 3
options=()
for option in "$@"; do [ -z "$option" ] || options+=("$option"); done
python -m cs336_systems.compare "$a" "$b" --json "$folder/comparison.json" --csv "$folder/comparison.csv" ${options[@]+"${options[@]}"}
status=$?
[ $status -gt 1 ] && exit $status
python -m scripts.stages.comparison_page "$folder/comparison.json" "$folder" || exit
exit $status
