{{- define "agent.name" -}}
{{- if contains "fleetbus-agent" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- else -}}{{ printf "%s-fleetbus-agent" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{/* The name of a cluster-scoped object: two releases may have the same name in two namespaces. */}}
{{- define "agent.clusterName" -}}
{{ .Release.Namespace }}:{{ include "agent.name" . }}
{{- end -}}

{{- define "agent.selectorLabels" -}}
app.kubernetes.io/name: fleetbus-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "agent.labels" -}}
{{ include "agent.selectorLabels" . }}
app.kubernetes.io/part-of: fleetbus
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "agent.registration" -}}
{{- if .Values.registration.secretName -}}{{ .Values.registration.secretName }}{{- else if .Values.registration.seed -}}{{ include "agent.name" . }}-registration{{- end -}}
{{- end -}}

{{/* What gateway and watcher share. */}}
{{- define "agent.environment" -}}
- {name: FLEETBUS_LOG_LEVEL, value: {{ .Values.log.level | quote }}}
- {name: FLEETBUS_LOG_FORMAT, value: {{ .Values.log.format | quote }}}
- {name: FLEETBUS_NATS_URL, value: {{ .Values.nats.url | quote }}}
- {name: FLEETBUS_NATS_NKEY_FILE, value: /run/fleetbus/nkey}
{{- if .Values.nats.ca }}
- {name: FLEETBUS_NATS_CA_FILE, value: /etc/fleetbus/ca/ca.crt}
{{- end }}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: FLEETBUS_HEALTH_HOST, value: $(POD_IP)}
{{- end -}}

{{- define "agent.container" -}}
image: {{ with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}{{ end }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "agent.probes" -}}
ports:
  - {name: {{ .name }}, containerPort: {{ .port }}}
livenessProbe:
  httpGet: {path: /healthz, port: {{ .name }}}
  periodSeconds: 20
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: {{ .name }}}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end -}}

{{/* What `*` leaves out, as a JSON list: what every watcher leaves out and, unless everything may be read, the types of
Kubernetes that the ClusterRole `view` has no rights to. Each of them would be reported as failing. */}}
{{- define "agent.denied" -}}
{{- $found := list "core/events" "events.k8s.io/events" "coordination.k8s.io/leases" "core/endpoints" "discovery.k8s.io/endpointslices" -}}
{{- if ne .Values.access.mode "full" -}}
{{- $groups := dict
  "core" "podtemplates"
  "admissionregistration.k8s.io" "mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations"
  "certificates.k8s.io" "certificatesigningrequests clustertrustbundles podcertificaterequests"
  "coordination.k8s.io" "leasecandidates"
  "flowcontrol.apiserver.k8s.io" "flowschemas prioritylevelconfigurations"
  "internal.apiserver.k8s.io" "storageversions"
  "networking.k8s.io" "ingressclasses ipaddresses servicecidrs"
  "node.k8s.io" "runtimeclasses"
  "rbac.authorization.k8s.io" "clusterrolebindings clusterroles rolebindings roles"
  "resource.k8s.io" "deviceclasses devicetaintrules resourceslices"
  "scheduling.k8s.io" "priorityclasses"
  "storage.k8s.io" "csidrivers csinodes csistoragecapacities volumeattachments volumeattributesclasses"
  "storagemigration.k8s.io" "storageversionmigrations" -}}
{{- range $group, $plurals := $groups -}}
{{- range splitList " " $plurals -}}{{- $found = append $found (printf "%s/%s" $group .) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- default $found .Values.watch.deny | toJson -}}
{{- end -}}
