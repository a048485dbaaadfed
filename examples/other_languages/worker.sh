#!/bin/bash
# A worker in the shell, with psql: one job after another of one queue, until SIGTERM. Each call is a connection.
#
#     DATABASE_URL=postgresql://... ./worker.sh reports
set -u

queue=${1:-reports}
lease=${LEASE_SECONDS:-30}

# sql STATEMENT NAME=VALUE...: its answer without headings, one value a line. :'name' in the statement is a quoted value.
sql() {
    local statement=$1 options=()
    shift
    for value in "$@"; do options+=(-v "$value"); done
    psql "$DATABASE_URL" -XAtq -F $'\n' -v ON_ERROR_STOP=1 "${options[@]}" <<<"$statement"
}

# The work. Parameters: kind, arguments (JSON), id and token. Its output is the result; where it fails, the attempt has failed.
handle() {
    case $1 in
        make_report) echo "a report of $2" ;;
        count_login)  # Effect and end in one statement.
            sql "insert into login (user_id, job_id) select (:'args'::jsonb ->> 'user_id')::int, :'id'
                 from forebay.done(array[:'token']) where status = 'settled'" args="$2" id="$3" token="$4" ;;
        *) echo "no handler for $1" >&2; return 1 ;;
    esac
}

enter() {
    worker=$(sql "select forebay.enter(:'name', array[:'queue'], make_interval(secs => :'lease'), host => :'host', pid => :'pid', app => 'worker.sh (psql)')" \
        name="shell-$(hostname)-$$" queue="$queue" lease="$lease" host="$(hostname)" pid=$$)
}

# While a job runs: the lease is extended four times in its length.
beat() { while sleep "$((lease > 3 ? lease / 4 : 1))"; do sql "select forebay.extend(:'worker')" worker="$worker" >/dev/null || return; done; }

stopping=
trap 'stopping=1' TERM INT
errors=$(mktemp)
until enter; do sleep 1; done
while [ -z "$stopping" ]; do
    if ! job=$(sql "select token, id, kind, args from forebay.take(:'queue', :'worker')" queue="$queue" worker="$worker"); then
        sleep 1
        enter  # The lease may have ended; its job went to others.
    elif [ -z "$job" ]; then
        sleep 0.5
    else
        { read -r token; read -r id; read -r kind; read -r args; } <<<"$job"
        beat & beating=$!
        if result=$(handle "$kind" "$args" "$id" "$token" 2>"$errors"); then
            sql "select forebay.done(array[:'token'], results => jsonb_build_array(:'result'::text))" token="$token" result="$result" >/dev/null
        else
            sql "select forebay.failed(array[:'token'], :'error')" token="$token" error="$(tail -c 4000 "$errors")" >/dev/null
        fi
        kill "$beating" 2>/dev/null
    fi
done
sql "select forebay.leave(:'worker')" worker="$worker" >/dev/null
rm -f "$errors"
