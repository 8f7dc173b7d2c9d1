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

{{- define "fleetbus.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "fleetbus.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
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
{{ ternary "rediss" "redis" (ne (include "fleetbus.tlsSecret" (list . "valkey")) "") }}://{{ include "fleetbus.name" (list . "valkey") }}.{{ .Release.Namespace }}.svc:6379/0
{{- else -}}
{{ .Values.valkey.external.url }}
{{- end -}}
{{- end -}}

{{/* Whether each component has a Secret for stores of others, and each Secret a component. */}}
{{- define "fleetbus.checkSecrets" -}}
{{- $components := include "fleetbus.components" . | fromYamlArray -}}
{{- range $store, $rights := dict "nats" "nats" "valkey" "redis" -}}
{{- $external := (get $.Values $store).external -}}
{{- $users := list -}}
{{- range $components -}}{{- if get . $rights -}}{{- $users = append $users .id -}}{{- end -}}{{- end -}}
{{- range $name, $_ := $external.secrets -}}
{{- if not (has $name $users) -}}
{{- fail (printf "%s.external.secrets.%s: no component has this name; they are %s" $store $name (join ", " $users)) -}}
{{- end -}}
{{- end -}}
{{- if and $external.url (ne $external.authentication "none") (not $external.secretName) -}}
{{- range $users -}}
{{- if not (get $external.secrets .) -}}
{{- fail (printf "%s.external.secretName: it is needed, because %s has none in %s.external.secrets" $store . $store) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What a schema cannot say. */}}
{{- define "fleetbus.check" -}}
{{- $v := .Values -}}
{{- if eq $v.nats.embedded.enabled (ne $v.nats.external.url "") -}}
{{- fail "nats: set exactly one of nats.embedded.enabled and nats.external.url" -}}
{{- end -}}
{{- if eq $v.valkey.embedded.enabled (ne $v.valkey.external.url "") -}}
{{- fail "valkey: set exactly one of valkey.embedded.enabled and valkey.external.url" -}}
{{- end -}}
{{- range $store := list "nats" "valkey" -}}
{{- $external := (get $v $store).external -}}
{{- if contains "@" $external.url -}}
{{- fail (printf "%s.external.url: no credentials in the address; put them into the Secret of %s.external.secretName" $store $store) -}}
{{- end -}}
{{- end -}}
{{- if eq $v.clusters.namespace .Release.Namespace -}}
{{- fail "clusters.namespace: it may not be the namespace of the release, whose Secrets hold the credentials of all components" -}}
{{- end -}}
{{- range $path, $entries := dict "watchers.clusters" $v.watchers.clusters "reconcilers" $v.reconcilers "externalSubscribers" $v.externalSubscribers "rolloutVoters" $v.rolloutVoters -}}
{{- $seen := dict -}}
{{- range $entries -}}
{{- if hasKey $seen .name -}}{{- fail (printf "%s: two entries have the name %s" $path .name) -}}{{- end -}}
{{- $_ := set $seen .name true -}}
{{- end -}}
{{- end -}}
{{- range $v.watchers.clusters -}}
{{- if and (not .kubeconfigSecret) (ne .name $v.hub.cluster) -}}
{{- fail (printf "watchers.clusters: %s: kubeconfigSecret is missing; only the hub (hub.cluster: %s) is watched without one" .name $v.hub.cluster) -}}
{{- end -}}
{{- end -}}
{{- $taken := dict "projector" true "projector-replay" true -}}
{{- range $v.reconcilers -}}{{- range $name := .controllers -}}{{- range $end := list "-a" "-b" "-replay" -}}
{{- $_ := set $taken (printf "%s%s" $name $end) true -}}
{{- end -}}{{- end -}}{{- end -}}
{{- range $name := list "distributor" "distributor-targets" -}}{{- range $end := list "-a" "-b" "-replay" -}}
{{- $_ := set $taken (printf "%s%s" $name $end) true -}}
{{- end -}}{{- end -}}
{{- range $v.externalSubscribers -}}
{{- $durable := default (printf "subscriber-%s" .name) .durable -}}
{{- if hasKey $taken $durable -}}{{- fail (printf "externalSubscribers: %s: the durable %s belongs to somebody else" .name $durable) -}}{{- end -}}
{{- $_ := set $taken $durable true -}}
{{- end -}}
{{- range $v.reconcilers -}}
{{- if or (has "distributor" .controllers) (has "distributor-targets" .controllers) (has "projector" .controllers) -}}
{{- fail (printf "reconcilers: %s: projector, distributor and distributor-targets are no names for controllers" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
