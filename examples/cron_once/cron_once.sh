#!/bin/sh
# Runs a command on one of many hosts, once per slot of time. In the crontab of every host:
#   5 * * * *  cron_once.sh "$DSN" hourly-report '1 hour' /usr/local/bin/report
# At minute 5, because the slot is that of the database's clock, and the clocks of hosts differ.
set -eu
dsn=$1 name=$2 slot=$3
shift 3
granted=$(psql -XAtq -v ON_ERROR_STOP=1 -v name="$name" -v slot="$slot" "$dsn" <<'SQL'
select lock.acquire_time_slot(:'name', :'slot');
SQL
)
# From here on the slot is taken. If this host dies, no other host runs the command in this slot.
[ "$granted" = t ] || exit 0
exec "$@"
