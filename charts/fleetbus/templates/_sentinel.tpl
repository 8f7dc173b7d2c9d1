{{/* The Sentinels beside three servers of Valkey: which of the servers is the master, and what happens to it. */}}

{{/* The end of the name of each server. */}}
{{- define "fleetbus.valkeyDomain" -}}
{{ include "fleetbus.name" (list . "valkey-headless") }}.{{ .Release.Namespace }}.svc
{{- end -}}

{{/* Name and port of each Sentinel. */}}
{{- define "fleetbus.sentinels" -}}
{{- $found := list -}}
{{- range $number := until (include "fleetbus.servers" (list . "valkey") | int) -}}
{{- $found = append $found (printf "%s-%d.%s:26379" (include "fleetbus.name" (list $ "valkey")) $number (include "fleetbus.valkeyDomain" $)) -}}
{{- end -}}
{{- join "," $found -}}
{{- end -}}

{{- define "fleetbus.sentinelConfig" -}}
bind * -::*
{{ include "fleetbus.valkeyListen" (list . 26379) }}
{{- if include "fleetbus.tlsSecret" (list . "valkey") }}
tls-replication yes
{{- end }}
dir /data/sentinel
aclfile /etc/valkey/sentinel.acl
sentinel sentinel-user sentinel
sentinel sentinel-pass {{ include "fleetbus.password" (list . "redis" "sentinel") }}
# Addresses of pods change, and certificates are for names.
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-port 26379
{{ end -}}

{{/* What a Sentinel needs to know of the master, after its address. */}}
{{- define "fleetbus.sentinelMaster" -}}
sentinel auth-user fleetbus sentinel
sentinel auth-pass fleetbus {{ include "fleetbus.password" (list . "redis" "sentinel") }}
sentinel down-after-milliseconds fleetbus 5000
sentinel failover-timeout fleetbus 30000
sentinel parallel-syncs fleetbus 1
# One that was restarted, and reads its data for longer than that, is replaced too.
sentinel master-reboot-down-after-period fleetbus 5000
{{- end -}}

{{/* One user for each component, which may ask who is the master. */}}
{{- define "fleetbus.sentinelUsers" -}}
user default off resetkeys resetchannels -@all
user probe on #{{ include "fleetbus.password" (list . "redis" "probe") | sha256sum }} resetkeys resetchannels -@all +ping +acl|load +client|kill +sentinel|get-master-addr-by-name +sentinel|failover
user sentinel on #{{ include "fleetbus.password" (list . "redis" "sentinel") | sha256sum }} resetkeys allchannels -@all +ping +info +publish +subscribe +client|setname +sentinel|is-master-down-by-addr
{{- range include "fleetbus.components" . | fromYamlArray }}
{{- if .redis }}
user {{ .id }} on #{{ include "fleetbus.password" (list $ "redis" .id) | sha256sum }} resetkeys resetchannels -@all +ping +sentinel|masters
{{- end }}
{{- end }}
{{ end -}}

{{- define "fleetbus.sentinelReady" -}}
{{- include "fleetbus.loadUsers" (list "sentinel.acl" (printf "%s -p 26379" (include "fleetbus.valkeyCli" .))) }}
ask '^PONG$' ping
{{ end -}}

{{- define "fleetbus.askSentinel" -}}
me=$POD_NAME.{{ include "fleetbus.valkeyDomain" . }}
sentinels="{{ include "fleetbus.sentinels" . | replace ":26379" "" | replace "," " " }}"
ask_sentinel() {
  host=$1 && shift
  REDISCLI_AUTH="$(cat /etc/valkey/probe)" timeout 2 valkey-cli --user probe{{ if include "fleetbus.tlsSecret" (list . "valkey") }} --tls --cacert /etc/valkey-tls/ca.crt{{ end }} -h $host -p 26379 sentinel "$@" 2>&1 || :
}
{{- end -}}

{{/* The master as most Sentinels say, else as that of this pod said last, else the first server. */}}
{{- define "fleetbus.findMaster" -}}
{{ include "fleetbus.askSentinel" . }}
find_master() {
  for host in $sentinels; do ask_sentinel $host get-master-addr-by-name fleetbus; done |
    grep -oE '[a-z0-9-]+\.{{ include "fleetbus.valkeyDomain" . | replace "." "\\." }}$' |
    sort | uniq -c | sort -n | sed -n '$s/^ *[0-9]* //p' | grep . && return
  sed -n 's/^sentinel monitor fleetbus \([^ ]*\) .*/\1/p' /data/sentinel/sentinel.conf 2>/dev/null | grep . ||
    echo {{ include "fleetbus.name" (list . "valkey") }}-0.{{ include "fleetbus.valkeyDomain" . }}
}
{{- end -}}

{{- define "fleetbus.valkeyStart" -}}
set -eu
{{ include "fleetbus.findMaster" . }}
# The probes log in with the password that the server has loaded.
cp /etc/valkey/probe /run/valkey/probe
master=$(find_master)
{
  cat /etc/valkey/valkey.conf
  echo "replica-announce-ip $me"
  [ "$master" = "$me" ] || echo "replicaof $master 6379"
} >/run/valkey/valkey.conf
exec valkey-server /run/valkey/valkey.conf
{{ end -}}

{{/* A Sentinel writes what it learns into its configuration: it keeps its name, its epochs and who it knows. */}}
{{- define "fleetbus.sentinelStart" -}}
set -eu
{{ include "fleetbus.findMaster" . }}
cp /etc/valkey/probe /run/valkey/probe
mkdir -p /data/sentinel
cd /data/sentinel
master=$(find_master)
{
  cat /etc/valkey/sentinel.conf
  echo "sentinel announce-ip $me"
  echo "sentinel monitor fleetbus $master 6379 2"
  cat <<'end'
{{ include "fleetbus.sentinelMaster" . }}
end
  grep -E '^sentinel (myid|current-epoch|(config-epoch|leader-epoch|known-replica|known-sentinel) fleetbus) ' sentinel.conf |
    grep -vF "known-replica fleetbus $master " || :
} >next
mv next sentinel.conf
exec valkey-server sentinel.conf --sentinel
{{ end -}}

{{/* Hands over, and waits until another server is the master; if nobody can take over, Valkey just stops. */}}
{{- define "fleetbus.valkeyStop" -}}
{{ include "fleetbus.askSentinel" . }}
is_master() {
  REDISCLI_AUTH="$(cat /run/valkey/probe)" {{ include "fleetbus.valkeyCli" . }} role | grep -qx master
}
is_master || exit 0
fail_over() {
  for host in $sentinels; do
    # The Sentinel of this pod is stopped, too.
    [ $host != $me ] && ask_sentinel $host failover fleetbus "$@" | grep -qx OK && return
  done
  return 1
}
# Coordinated, the replica first has every write; Valkey 9 and newer can do that.
fail_over coordinated || fail_over
for second in 1 2 3 4 5 6 7 8 9 10; do
  is_master || break
  sleep 1
done
{{ end -}}
