{{/* Prefix of every name: the release, and the chart unless the release is called so. */}}
{{- define "fleetbus.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name }}
{{- else -}}
{{ .Release.Name }}-{{ $name }}
{{- end -}}
{{- end -}}

{{/* A name of at most 52 characters, so that a StatefulSet's revision label fits; cut ones get a hash and stay
distinct. Takes [context, suffix]. */}}
{{- define "fleetbus.name" -}}
{{- $full := printf "%s-%s" (include "fleetbus.fullname" (index . 0)) (index . 1) -}}
{{- if gt (len $full) 52 -}}
{{ $full | trunc 41 | trimSuffix "-" | trimSuffix "." }}-{{ $full | sha256sum | trunc 10 }}
{{- else -}}
{{ $full }}
{{- end -}}
{{- end -}}

{{/* The name of a cluster-scoped object: two releases may have the same name in two namespaces. */}}
{{- define "fleetbus.clusterName" -}}
{{ (index . 0).Release.Namespace }}:{{ include "fleetbus.name" . }}
{{- end -}}

{{- define "fleetbus.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Takes [context, component]. */}}
{{- define "fleetbus.labels" -}}
{{- $ := index . 0 -}}
{{ include "fleetbus.selectorLabels" $ }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/part-of: fleetbus
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{/* Takes [context, image]: a digest wins over a tag. */}}
{{- define "fleetbus.image" -}}
{{- $ := index . 0 -}}{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default $.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* The seed of all passwords: of the values, or of its Secret, or a new one; once per rendering. */}}
{{- define "fleetbus.seed" -}}
{{- if .Values.credentials.seed -}}
{{ .Values.credentials.seed }}
{{- else -}}
{{- if not (hasKey .Release "fleetbusSeed") -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace (include "fleetbus.name" (list . "seed")) -}}
{{- $_ := set .Release "fleetbusSeed" (include "fleetbus.keptSeed" $found | default (randAlphaNum 64)) -}}
{{- end -}}
{{ .Release.fleetbusSeed }}
{{- end -}}
{{- end -}}

{{/* The seed in a Secret that `lookup` found; empty if there is none. */}}
{{- define "fleetbus.keptSeed" -}}
{{- $data := (. | default dict).data | default dict -}}
{{- get $data "seed" | default "" | b64dec -}}
{{- end -}}

{{/* Takes [context, store, user]. */}}
{{- define "fleetbus.password" -}}
{{- $ := index . 0 -}}
{{- $rotated := get $.Values.credentials.rotate (index . 2) | default "" -}}
{{- printf "%s\n%s\n%s\n%s" (include "fleetbus.seed" $) (index . 1) (index . 2) $rotated | sha256sum | trunc 48 -}}
{{- end -}}

{{/* Where every pod runs, as whom, and from which registry. Takes [context, values that replace those of pods]. */}}
{{- define "fleetbus.podSettings" -}}
{{- $pods := (index . 0).Values.pods -}}{{- $own := index . 1 -}}{{- $ids := $pods.securityContext | default dict -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- range $key := list "runAsUser" "runAsGroup" "fsGroup" }}
  {{- if not (hasKey $ids $key) }}
  {{ $key }}: 10001
  {{- else if not (has (get $ids $key | toString) (list "<nil>" "platform")) }}
  {{ $key }}: {{ get $ids $key | int64 }}
  {{- end }}
  {{- end }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with (index . 0).Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with default (get $pods $key) (get $own $key) }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "fleetbus.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The number of servers of an embedded store. Takes [context, nats or valkey]. */}}
{{- define "fleetbus.servers" -}}
{{- $ := index . 0 -}}
{{- ternary 3 (int (get $.Values (index . 1)).embedded.replicas) $.Values.ha -}}
{{- end -}}

{{/* Where components find NATS and Valkey. */}}
{{- define "fleetbus.natsUrl" -}}
{{- if .Values.nats.embedded.enabled -}}
{{ ternary "tls" "nats" (ne (include "fleetbus.tlsSecret" (list . "nats")) "") }}://{{ include "fleetbus.name" (list . "nats") }}.{{ .Release.Namespace }}.svc:4222
{{- else -}}
{{ .Values.nats.external.url }}
{{- end -}}
{{- end -}}

{{- define "fleetbus.redisUrl" -}}
{{- if .Values.valkey.embedded.enabled -}}
{{- $scheme := ternary "rediss" "redis" (ne (include "fleetbus.tlsSecret" (list . "valkey")) "") -}}
{{- if gt (include "fleetbus.servers" (list . "valkey") | int) 1 -}}
{{ $scheme }}+sentinel://{{ include "fleetbus.sentinels" . }}/fleetbus/0
{{- else -}}
{{ $scheme }}://{{ include "fleetbus.name" (list . "valkey") }}.{{ .Release.Namespace }}.svc:6379/0
{{- end -}}
{{- else -}}
{{ .Values.valkey.external.url }}
{{- end -}}
{{- end -}}
