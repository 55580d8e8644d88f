#!/usr/bin/env bash
# image.sh BINARIES TAG: makes a container image of PostgreSQL out of server binaries and this machine's libraries, without pulling
# anything. It behaves as the official image does where tests ask: POSTGRES_USER, the command's settings, and its log.
set -euo pipefail
binaries=$(cd "$1" && pwd) tag=$2
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

mkdir -p "$tree"/{bin,etc,tmp,var/lib/postgresql,usr/share/zoneinfo,dev,proc}
cp -a "$binaries" "$tree/postgres"
cp /bin/bash "$tree/bin/bash" && ln -s bash "$tree/bin/sh"
[ -d /usr/share/zoneinfo ] && cp -a /usr/share/zoneinfo/. "$tree/usr/share/zoneinfo/"
printf 'root:x:0:0::/:/bin/sh\npostgres:x:999:999::/var/lib/postgresql:/bin/sh\n' >"$tree/etc/passwd"
printf 'root:x:0:\npostgres:x:999:\n' >"$tree/etc/group"

# Every library that the programs and extensions link to, where they look for it.
programs() { find "$tree/postgres" "$tree/bin" -type f \( -perm -u+x -o -name '*.so*' \) -print0; }
libraries() { LD_LIBRARY_PATH="$tree/postgres/lib" xargs -0 -n 1 ldd 2>/dev/null || true; } # what is no program is an error there
programs | libraries | grep -oE '/[^ ]+\.so[^ ]*' | sort -u | while read -r library; do
    case $library in "$tree"/*) continue ;; esac
    mkdir -p "$tree$(dirname "$library")"
    cp -L "$library" "$tree$library"
done

cat >"$tree/entrypoint" <<'EOF'
#!/bin/sh
set -e
export PATH=/postgres/bin:/bin LD_LIBRARY_PATH=/postgres/lib LC_ALL=C
data=/var/lib/postgresql/data
initdb -D $data -U "${POSTGRES_USER:-postgres}" -A trust -E UTF8 --locale=C --no-sync
echo 'host all all all trust' >>$data/pg_hba.conf
# The official image logs this twice, because it starts the server once to prepare the database.
echo 'database system is ready to accept connections'
exec "$@" -D $data -c listen_addresses='*' -c unix_socket_directories=/tmp
EOF
chmod 755 "$tree/entrypoint"
chmod -R a+rX "$tree" && chmod 1777 "$tree/tmp" && chown -R 999:999 "$tree/var/lib/postgresql"
tar -C "$tree" -c . | docker import \
    --change 'USER 999:999' --change 'ENTRYPOINT ["/entrypoint"]' --change 'CMD ["postgres"]' --change 'EXPOSE 5432' \
    --change 'ENV PATH=/postgres/bin:/bin LD_LIBRARY_PATH=/postgres/lib' - "$tag" >/dev/null
echo "built $tag"
