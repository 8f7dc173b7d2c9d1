{{/* The Secret with the certificate of nats, valkey or query-api: its user's own, or one that the chart or
cert-manager makes; empty without TLS. Takes [context, instance]. */}}
{{- define "fleetbus.tlsSecret" -}}
{{- $ := index . 0 -}}{{- $instance := index . 1 -}}
{{- $made := include "fleetbus.name" (list $ (printf "%s-tls" $instance)) -}}
{{- if eq $instance "query-api" -}}
{{- with $.Values.queryApi -}}
{{- if and .enabled (not .tls.terminated) -}}{{ default $made .tls.secretName }}{{- end -}}
{{- end -}}
{{- else -}}
{{- with (get $.Values $instance).embedded -}}
{{- if and .enabled $.Values.tls.enabled -}}{{ default $made .tls.secretName }}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether there is a certificate to be made for an instance. Takes [context, instance]. */}}
{{- define "fleetbus.makesCertificate" -}}
{{- $made := include "fleetbus.name" (list (index . 0) (printf "%s-tls" (index . 1))) -}}
{{- if eq (include "fleetbus.tlsSecret" .) $made -}}true{{- end -}}
{{- end -}}

{{/* The chart's CA, as {cert, key} in base64: the one in its Secret, or a new one; once per rendering. */}}
{{- define "fleetbus.authority" -}}
{{- if not (hasKey .Release "fleetbusAuthority") -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace (include "fleetbus.name" (list . "ca")) | default dict -}}
{{- $said := ($found.metadata | default dict).annotations | default dict -}}
{{- $is_kept := and $found.data (eq (get $said "fleetbus.dev/rotate") .Values.tls.rotate) (gt (get $said "fleetbus.dev/renew-after") (now | date "2006-01-02")) -}}
{{- if $is_kept -}}
{{- $_ := set .Release "fleetbusAuthority" (dict "cert" (get $found.data "tls.crt") "key" (get $found.data "tls.key") "renewAfter" (get $said "fleetbus.dev/renew-after")) -}}
{{- else -}}
{{- $made := genCAWithKey (printf "%s CA" (include "fleetbus.fullname" .) | trunc 60) 7300 (genPrivateKey "ecdsa") -}}
{{- $_ := set .Release "fleetbusAuthority" (dict "cert" ($made.Cert | b64enc) "key" ($made.Key | b64enc) "renewAfter" (now | date_modify "87600h" | date "2006-01-02")) -}}
{{- end -}}
{{- end -}}
{{ .Release.fleetbusAuthority | toJson }}
{{- end -}}

{{/* The names that clients may use for an instance. Takes [context, instance]. */}}
{{- define "fleetbus.hosts" -}}
{{- $ := index . 0 -}}{{- $namespace := $.Release.Namespace -}}
{{- $service := include "fleetbus.name" . -}}
{{- $found := list (printf "%s.%s.svc" $service $namespace) (printf "%s.%s.svc.cluster.local" $service $namespace) "localhost" -}}
{{- if or (eq (index . 1) "nats") (and (eq (index . 1) "valkey") (gt (include "fleetbus.servers" . | int) 1)) -}}
{{- /* Routes go to the pods, and so do clients of a master. */ -}}
{{- $found = append $found (printf "*.%s.%s.svc" (include "fleetbus.name" (list $ (printf "%s-headless" (index . 1)))) $namespace) -}}
{{- end -}}
{{- range include "fleetbus.outsideHosts" . | fromJsonArray -}}
{{- if not (include "fleetbus.isAddress" .) -}}{{- $found = append $found . -}}{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* The IP addresses that clients may use for an instance. Takes [context, instance]. */}}
{{- define "fleetbus.addresses" -}}
{{- $found := list "127.0.0.1" -}}
{{- range include "fleetbus.outsideHosts" . | fromJsonArray -}}
{{- if include "fleetbus.isAddress" . -}}{{- $found = append $found . -}}{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* The hosts of agents.url, under which members reach NATS; none for others. Takes [context, instance]. */}}
{{- define "fleetbus.outsideHosts" -}}
{{- $agents := (index . 0).Values.agents -}}
{{- $found := list -}}
{{- if and (eq (index . 1) "nats") $agents.enabled $agents.url -}}
{{- range splitList "," $agents.url -}}
{{- $found = append $found (urlParse (ternary . (printf "tls://%s" .) (contains "://" .))).hostname -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* Whether a host is an IP address; empty for a name. */}}
{{- define "fleetbus.isAddress" -}}
{{- if or (regexMatch "^[0-9.]+$" .) (contains ":" .) -}}true{{- end -}}
{{- end -}}

{{/* A certificate of the chart's CA. The one in the cluster stays for a year of its five, unless the CA or a name is
another one; then the next upgrade replaces it. Takes [context, instance]. */}}
{{- define "fleetbus.certificateSecret" -}}
{{- $ := index . 0 -}}
{{- $name := include "fleetbus.tlsSecret" . -}}
{{- $ca := include "fleetbus.authority" $ | fromJson -}}
{{- $found := lookup "v1" "Secret" $.Release.Namespace $name | default dict -}}
{{- $said := ($found.metadata | default dict).annotations | default dict -}}
{{- $renewAfter := get $said "fleetbus.dev/renew-after" -}}
{{- $hosts := include "fleetbus.hosts" . | fromJsonArray -}}
{{- $addresses := include "fleetbus.addresses" . | fromJsonArray -}}
{{- $names := join "," (concat $hosts (without $addresses "127.0.0.1")) -}}
{{- $data := $found.data | default dict -}}
{{- if not (and (eq (get $data "ca.crt") $ca.cert) (gt $renewAfter (now | date "2006-01-02")) (eq (get $said "fleetbus.dev/hosts") $names)) -}}
{{- $made := genSignedCertWithKey (first $hosts | trunc 60) $addresses $hosts 1825 (buildCustomCert $ca.cert $ca.key) (genPrivateKey "ecdsa") -}}
{{- $data = dict "ca.crt" $ca.cert "tls.crt" ($made.Cert | b64enc) "tls.key" ($made.Key | b64enc) -}}
{{- $renewAfter = now | date_modify "8760h" | date "2006-01-02" -}}
{{- end -}}
apiVersion: v1
kind: Secret
metadata:
  name: {{ $name }}
  namespace: {{ $.Release.Namespace }}
  labels: {{- include "fleetbus.labels" . | nindent 4 }}
  annotations:
    fleetbus.dev/renew-after: {{ $renewAfter | quote }}
    fleetbus.dev/hosts: {{ $names | quote }}
type: kubernetes.io/tls
data: {{- pick $data "ca.crt" "tls.crt" "tls.key" | toYaml | nindent 2 }}
{{- end -}}

{{/* The CA of the embedded NATS in base64, for subscribers; of a Secret that the chart does not make, if it is there. */}}
{{- define "fleetbus.natsCa" -}}
{{- $name := include "fleetbus.tlsSecret" (list . "nats") -}}
{{- if and $name (include "fleetbus.makesCertificate" (list . "nats")) (not .Values.tls.issuerRef) -}}
{{ (include "fleetbus.authority" . | fromJson).cert }}
{{- else if $name -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace $name | default dict -}}
{{ get ($found.data | default dict) "ca.crt" }}
{{- end -}}
{{- end -}}
