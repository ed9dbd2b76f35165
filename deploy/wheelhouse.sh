#!/bin/sh
# wheelhouse.sh [FOLDER]: fetches what requirements.lock lists, as wheels and by hash, for the Python of the image.
# The image is then built from these files alone, without a network. PYTHON_VERSION (3.11) and ARCH (this machine's)
# name the image's; both must fit BASE_IMAGE.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-deploy/wheelhouse}
version=${PYTHON_VERSION:-3.11}
arch=${ARCH:-$(uname -m)}
python=.venv/bin/python
[ -x "$python" ] || { echo "wheelhouse: $python is missing; run 'make setup' first" >&2; exit 1; }

platforms=""
for minor in $(seq 34 -1 5); do # Debian 12 has glibc 2.36; nothing that we use asks for more than 2.34
    platforms="$platforms --platform manylinux_2_${minor}_$arch"
done
mkdir -p "$folder"
cp requirements.lock "$folder/requirements.lock"
# Conditions are left to the image's own Python, which may be another patch version than this machine's.
unconditional=$folder/unconditional.lock
sed 's/^\([^ ]*==[^ ]*\) ;[^\\]*/\1 /' requirements.lock >"$unconditional"
log=$folder/download.log
# shellcheck disable=SC2086  # one word per argument is meant
if ! "$python" -m pip download --disable-pip-version-check --no-input --progress-bar off --dest "$folder" \
    --require-hashes --no-deps --only-binary :all: --implementation cp --python-version "$version" \
    --abi "cp$(echo "$version" | tr -d .)" --abi abi3 --abi none $platforms --platform "manylinux2014_$arch" --platform any \
    -r "$unconditional" >"$log" 2>&1; then
    grep -v '^WARNING: Location' "$log" | tail -n 12 >&2
    echo "wheelhouse: fetching failed; above is the end of $log" >&2
    exit 1
fi
rm "$log" "$unconditional"
echo "wheelhouse: $(find "$folder" -name '*.whl' | wc -l) wheels in $folder, $(du -sh "$folder" | cut -f1)"
