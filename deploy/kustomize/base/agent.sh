# Two runs of an agent as OTLP/JSON, stamped with the time of now. Any OpenTelemetry SDK sends the like to the same address by default.
set -eu

id() { tr -d - </proc/sys/kernel/random/uuid | cut -c "1-$1"; }

attribute() { printf '{"key":"%s","value":{"stringValue":"%s"}}' "$1" "$2"; }

span() { # NAME SPAN PARENT START END ATTRIBUTES; times in milliseconds
  printf '{"traceId":"%s","spanId":"%s","parentSpanId":"%s","name":"%s","kind":1,"startTimeUnixNano":"%s000000","endTimeUnixNano":"%s000000","attributes":[%s]}' \
    "$trace" "$2" "$3" "$1" "$4" "$5" "$6"
}

run() { # TOOL…: one trace, an agent run that calls these tools one after the other
  sleep 1
  trace=$(id 32) root=$(id 16) spans="" now=$(($(date +%s) * 1000))
  start=$now
  for tool in "$@"; do
    what="$(attribute gen_ai.operation.name execute_tool),$(attribute gen_ai.tool.name "$tool")"
    spans="$spans,$(span "execute_tool $tool" "$(id 16)" "$root" "$now" $((now + 100)) "$what")"
    now=$((now + 200))
  done
  what="$(attribute gen_ai.operation.name invoke_agent),$(attribute gen_ai.agent.name shop)"
  spans="$(span "invoke_agent shop" "$root" "" "$start" "$now" "$what")$spans"
  wget -q -O /dev/null --header 'Content-Type: application/json' http://127.0.0.1:4318/v1/traces --post-data \
    "{\"resourceSpans\":[{\"resource\":{\"attributes\":[$(attribute service.name example-agent)]},\"scopeSpans\":[{\"scope\":{\"name\":\"example\"},\"spans\":[$spans]}]}]}"
  echo "trace $trace: called $*"
}

run validate_user check_inventory create_order
run create_order validate_user check_inventory
