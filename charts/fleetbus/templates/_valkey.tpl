{{- define "fleetbus.valkeyConfig" -}}
{{- $valkey := .Values.valkey.embedded -}}
bind * -::*
{{- $several := gt (include "fleetbus.servers" (list . "valkey") | int) 1 }}
{{ include "fleetbus.valkeyListen" (list . 6379) }}
{{- if and $several (include "fleetbus.tlsSecret" (list . "valkey")) }}
tls-replication yes
{{- end }}
dir /data
aclfile /etc/valkey/users.acl
maxmemory {{ $valkey.maxMemory | int64 }}
# An evicted key is a lost object (rule P16).
maxmemory-policy noeviction
appendonly yes
appendfsync everysec
save ""
stop-writes-on-bgsave-error no
maxclients 10000
timeout 0
tcp-keepalive 60
{{- if $several }}
masteruser replica
masterauth {{ include "fleetbus.password" (list . "redis" "replica") | quote }}
# A master that is cut off from the others takes no more writes before one of them takes over: who still reaches it
# could extend leases on work that the new master gives to somebody else.
min-replicas-to-write 1
min-replicas-max-lag 3
# A replica that was away for a moment need not copy everything, and one that must does not wait for another.
repl-backlog-size 64mb
repl-diskless-sync-delay 0
{{- end }}
{{ end -}}

{{/* Port and TLS of a server or a Sentinel. Takes [context, port]. */}}
{{- define "fleetbus.valkeyListen" -}}
{{- if include "fleetbus.tlsSecret" (list (index . 0) "valkey") -}}
port 0
tls-port {{ index . 1 }}
tls-cert-file /etc/valkey-tls/tls.crt
tls-key-file /etc/valkey-tls/tls.key
tls-ca-cert-file /etc/valkey-tls/ca.crt
# Users log in with passwords.
tls-auth-clients no
# In seconds: a new certificate must be in use before the old one expires.
tls-auto-reload-interval 30
{{- else -}}
port {{ index . 1 }}
{{- end }}
{{- end -}}

{{/* On loopback nobody else can answer; while a CA is replaced its file and the server may differ. */}}
{{- define "fleetbus.valkeyCli" -}}
valkey-cli --user probe{{ if include "fleetbus.tlsSecret" (list . "valkey") }} --tls --insecure{{ end }}
{{- end -}}

{{/* Whether a server may be used: it is the master, or follows it. */}}
{{- define "fleetbus.valkeyReady" -}}
{{- $several := gt (include "fleetbus.servers" (list . "valkey") | int) 1 -}}
{{- include "fleetbus.loadUsers" (list "users.acl" (include "fleetbus.valkeyCli" .)) }}
{{- if $several }}
ask '^(master|connected)$' role
{{- else }}
ask '^PONG$' ping
{{- end }}
{{ end -}}

{{/* Loads users that were added, removed or changed, and ends connections of those that were changed; but not of the
servers among themselves, which keep the password that they began with until they restart.
Takes [file, client]. */}}
{{- define "fleetbus.loadUsers" -}}
cd /run/valkey || exit 1
# The password of `probe` may be one of those that were changed: the last one that worked, or the one of the file.
ask() {
  expected=$1 && shift
  for password in probe /etc/valkey/probe; do
    cp $password tried
    REDISCLI_AUTH="$(cat tried)" {{ index . 1 }} "$@" | grep -qE "$expected" && mv tried probe && return
  done
  return 1
}
load() {
  ask '^OK$' acl load || return
  [ -f loaded ] || return 0
  for user in $(grep -vxFf loaded next | cut -d ' ' -f 2 | grep -vxE 'replica|sentinel'); do
    ask '^[0-9]+$' client kill user "$user" || return
  done
}
# What changes between the copy and the load differs again in the next probe.
if ! cmp -s /etc/valkey/{{ index . 0 }} loaded; then
  cp /etc/valkey/{{ index . 0 }} next && load && mv next loaded
fi
{{- end -}}

{{/* One ACL user for each component (rule S8); passwords as SHA-256. */}}
{{- define "fleetbus.valkeyUsers" -}}
user default off resetkeys resetchannels -@all
user probe on #{{ include "fleetbus.password" (list . "redis" "probe") | sha256sum }} resetkeys resetchannels -@all +ping +acl|load +client|kill
{{- if gt (include "fleetbus.servers" (list . "valkey") | int) 1 }} +role
user replica on #{{ include "fleetbus.password" (list . "redis" "replica") | sha256sum }} resetkeys resetchannels -@all +psync +replconf +ping
user sentinel on #{{ include "fleetbus.password" (list . "redis" "sentinel") | sha256sum }} resetkeys allchannels -@all +ping +info +role +multi +exec +slaveof +replicaof +failover +subscribe +publish +config|rewrite +client|setname +client|kill +client|pause +client|unpause +script|kill
{{- end }}
{{- range include "fleetbus.components" . | fromYamlArray }}
{{- if .redis }}
user {{ .id }} on #{{ include "fleetbus.password" (list $ "redis" .id) | sha256sum }} resetkeys resetchannels {{ join " " .redis }} +@all -@admin -@dangerous -script -function -fcall -fcall_ro +info +script|load +script|exists
{{- end }}
{{- end }}
{{ end -}}
