#!/bin/sh
# secrets.sh [FOLDER]: makes the files that docker-compose.yml hands over as secrets, where they are missing.
# The folder is closed to everybody but you. The files in it are readable, because compose mounts them with the rights
# that they have here and the containers run as users of their own.
set -eu
cd "$(dirname "$0")/.."
folder=${1:-secrets}
mkdir -p "$folder"
chmod 700 "$folder"
mkdir -p "$folder/tls"
for name in secret_key sealing_key postgres_password redis_password; do
    if [ -s "$folder/$name" ]; then
        echo "secrets: $folder/$name is there"
        continue
    fi
    (umask 077 && head -c 48 /dev/urandom | base64 | tr -d '\n' | tr '+/' '-_' >"$folder/$name.new")
    chmod 444 "$folder/$name.new"
    mv "$folder/$name.new" "$folder/$name"
    echo "secrets: $folder/$name made"
done
echo "secrets: keep a copy of $folder/sealing_key elsewhere: without it no stored SSH key can be opened again"
