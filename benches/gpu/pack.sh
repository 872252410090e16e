#!/bin/sh
# Gathers what benches/gpu/run.sh needs on a host with a GPU, where nothing is built: benches/gpu/pack.sh FOLDER
set -eu
folder=$1
cd "$(dirname "$0")/../.."
mkdir -p "$folder/tests"

# Executables of one cargo command.
built() {
    cargo "$@" --message-format=json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

for path in $(built build --release -p s3engine-cli) $(built bench -p s3engine-benches --bench gpu --no-run); do
    cp "$path" "$folder/$(basename "$path" | sed 's/-[0-9a-f]\{16\}$//')"
done
# Tests with their checks: built without optimization. Packages have some names in common.
for package in s3engine-pool s3engine-tests; do
    for path in $(built test -p "$package" --test 'cuda*' --no-run); do
        case $path in
        */deps/*) cp "$path" "$folder/tests/$package-$(basename "$path" | sed 's/-[0-9a-f]\{16\}$//')" ;;
        *) cp "$path" "$folder/tests/" ;;
        esac
    done
done
find "$folder" -type f -perm -u+x ! -name '*.sh' -exec strip {} +
cp benches/gpu/run.sh "$folder/"
du -sh "$folder"
