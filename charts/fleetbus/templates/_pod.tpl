{{/* The environment and volumes of one component. Takes [context, component]. */}}
{{- define "fleetbus.environment" -}}
{{- $ := index . 0 -}}{{- $c := index . 1 -}}
{{- $env := dict "FLEETBUS_LOG_LEVELS_FILE" "/etc/fleetbus/log/levels.yaml" "FLEETBUS_LOG_FORMAT" $.Values.log.format "FLEETBUS_HEALTH_PORT" "8080" -}}
{{- if $c.nats -}}
{{- $_ := set $env "FLEETBUS_NATS_URL" (include "fleetbus.natsUrl" $) -}}
{{- /* Also for `kubectl exec … fleetbus`, which has no other inbox with the login of its pod. */ -}}
{{- $_ := set $env "FLEETBUS_NATS_INBOX_PREFIX" (first $c.nats.subscribe | trimSuffix ".>") -}}
{{- end -}}
{{- if $c.redis -}}
{{- $_ := set $env "FLEETBUS_REDIS_URL" (include "fleetbus.redisUrl" $) -}}
{{- $_ := set $env "FLEETBUS_SHARDS" ($.Values.shards | int | toString) -}}
{{- end -}}
{{- if $c.clusters -}}{{- $_ := set $env "FLEETBUS_PROVIDERS" (include "fleetbus.providers" $) -}}{{- end -}}
{{- /* Not for the pool, which would watch the hub with rights that only the hub's own watcher has. */ -}}
{{- if and $.Values.hub.cluster (or (eq $c.id "query-api") (and $c.clusters (ne $c.id "pool"))) -}}
{{- $_ := set $env "FLEETBUS_HUB_CLUSTER" $.Values.hub.cluster -}}
{{- end -}}
{{- $_ := merge $env $c.settings (include "fleetbus.storeSettings" (list $ $c) | fromJson) -}}
{{- $env = merge (default dict $c.values.env) $env -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: FLEETBUS_HEALTH_HOST, value: $(POD_IP)}
{{- if eq $c.id "query-api" }}
- {name: FLEETBUS_QUERY_API_HOST, value: $(POD_IP)}
{{- end }}
{{- range $name, $value := $env }}
{{- if kindIs "map" $value }}
- name: {{ $name }}
  valueFrom: {{ $value | toJson }}
{{- else }}
- {name: {{ $name }}, value: {{ $value | toString | toJson }}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "fleetbus.providers" -}}
{{- default (list (dict "type" "cluster" "namespace" .Values.clusters.namespace)) .Values.clusters.providers | toJson -}}
{{- end -}}

{{/* How a component logs in to NATS and Valkey, by mounted files. Takes [context, component]. */}}
{{- define "fleetbus.storeSettings" -}}
{{- $ := index . 0 -}}{{- $c := index . 1 -}}
{{- $env := dict -}}
{{- range $kind := list "nats" "redis" -}}
{{- if hasKey $c $kind -}}
{{- $store := ternary $.Values.valkey $.Values.nats (eq $kind "redis") -}}
{{- $var := printf "FLEETBUS_%s" (upper $kind) -}}{{- $folder := printf "/etc/fleetbus/%s" $kind -}}
{{- $secret := include "fleetbus.storeSecret" (list $ $c.id $kind) -}}
{{- $login := ternary "password" $store.external.authentication $store.embedded.enabled -}}
{{- if eq $login "password" -}}
{{- $_ := set $env (printf "%s_USERNAME" $var) (dict "secretKeyRef" (dict "name" $secret "key" "username")) -}}
{{- $_ := set $env (printf "%s_PASSWORD_FILE" $var) (printf "%s/password" $folder) -}}
{{- else if eq $login "creds" -}}
{{- $_ := set $env (printf "%s_CREDS_FILE" $var) (printf "%s/creds" $folder) -}}
{{- else if eq $login "nkey" -}}
{{- $_ := set $env (printf "%s_NKEY_FILE" $var) (printf "%s/nkey" $folder) -}}
{{- end -}}
{{- if ternary (include "fleetbus.tlsSecret" (list $ (ternary "valkey" "nats" (eq $kind "redis")))) $store.external.tls.ca $store.embedded.enabled -}}
{{- $_ := set $env (printf "%s_CA_FILE" $var) (printf "%s/ca.crt" $folder) -}}
{{- end -}}
{{- if and (not $store.embedded.enabled) $store.external.tls.clientCertificate -}}
{{- $_ := set $env (printf "%s_CERT_FILE" $var) (printf "%s/tls.crt" $folder) -}}
{{- $_ := set $env (printf "%s_KEY_FILE" $var) (printf "%s/tls.key" $folder) -}}
{{- end -}}
{{- if and (eq $kind "redis") (not $store.embedded.enabled) $store.external.sentinelAuthentication -}}
{{- $_ := set $env (printf "%s_SENTINEL_USERNAME" $var) (dict "secretKeyRef" (dict "name" $secret "key" "sentinel-username")) -}}
{{- $_ := set $env (printf "%s_SENTINEL_PASSWORD_FILE" $var) (printf "%s/sentinel-password" $folder) -}}
{{- else if and (eq $kind "redis") $store.embedded.enabled (gt (include "fleetbus.servers" (list $ "valkey") | int) 1) -}}
{{- $_ := set $env (printf "%s_SENTINEL_USERNAME" $var) (dict "secretKeyRef" (dict "name" $secret "key" "username")) -}}
{{- $_ := set $env (printf "%s_SENTINEL_PASSWORD_FILE" $var) (printf "%s/password" $folder) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $env | toJson -}}
{{- end -}}

{{/* The Secret that a component logs in with; empty if there is none. Takes [context, id, nats or redis]. */}}
{{- define "fleetbus.storeSecret" -}}
{{- $ := index . 0 -}}
{{- $store := ternary $.Values.valkey $.Values.nats (eq (index . 2) "redis") -}}
{{- if $store.embedded.enabled -}}
{{ include "fleetbus.name" (list $ (printf "%s-%s" (index . 1) (index . 2))) }}
{{- else -}}
{{ get $store.external.secrets (index . 1) | default $store.external.secretName }}
{{- end -}}
{{- end -}}

{{/* Takes [context, component]. */}}
{{- define "fleetbus.volumes" -}}
{{- $ := index . 0 -}}{{- $c := index . 1 -}}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
- name: log
  configMap:
    name: {{ include "fleetbus.name" (list $ "log") }}
{{- range $kind := list "nats" "redis" }}
{{- if hasKey $c $kind }}
{{- $store := ternary $.Values.valkey $.Values.nats (eq $kind "redis") }}
{{- $secret := include "fleetbus.storeSecret" (list $ $c.id $kind) }}
{{- if $secret }}
- name: {{ $kind }}
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ $secret }}
      {{- with include "fleetbus.tlsSecret" (list $ (ternary "valkey" "nats" (eq $kind "redis"))) }}
      - secret:
          name: {{ . }}
          items: [{key: ca.crt, path: ca.crt}]
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if $c.values.kubeconfigSecret }}
- name: cluster
  secret:
    secretName: {{ $c.values.kubeconfigSecret.name }}
    defaultMode: 0440
{{- end }}
{{- if and (eq $c.id "archiver") (not $.Values.archiver.url) }}
- name: archive
  persistentVolumeClaim:
    claimName: {{ default (include "fleetbus.name" (list $ "archive")) $.Values.archiver.persistence.existingClaim }}
{{- end }}
{{- if include "fleetbus.usesBucket" (list $ $c.id) }}
{{- with include "fleetbus.archiveCredentials" (list $ $c.id) }}
- name: archive-credentials
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with $.Values.archiver.caSecret }}
- name: archive-ca
  secret:
    secretName: {{ . }}
    items: [{key: ca.crt, path: ca.crt}]
    defaultMode: 0440
{{- end }}
{{- end }}
{{- if and (eq $c.id "query-api") (not $.Values.queryApi.tls.terminated) }}
- name: tls
  secret:
    secretName: {{ include "fleetbus.tlsSecret" (list $ "query-api") }}
    items: [{key: tls.crt, path: tls.crt}, {key: tls.key, path: tls.key}]
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* The image of a component, its own or the common one. Takes [context, component]. */}}
{{- define "fleetbus.componentImage" -}}
{{- $ := index . 0 -}}{{- $c := index . 1 -}}
{{- $own := default dict $c.values.image -}}
{{- if $own.repository -}}
{{ include "fleetbus.image" (list $ $own) }}
{{- else -}}
{{ include "fleetbus.image" (list $ $.Values.image) }}
{{- end -}}
{{- end -}}
