{{/* Every process of the release, as a YAML list: what runs, and its rights on NATS and Valkey. Deployments,
ServiceAccounts, Secrets, the configuration of NATS and the users of Valkey are all made from it.

id: the name after the release's, the user of NATS and Valkey; kind: the label; settings: environment;
values: its part of the values; nats and redis: its rights; hub: whether it reads the hub's API;
clusters: whether it reads the members' kubeconfigs. */}}
{{- define "fleetbus.components" -}}
{{- $ := . -}}
{{- include "fleetbus.check" . -}}
{{- range .Values.watchers.clusters }}
- id: watcher-{{ .name }}
  kind: watcher
  cluster: {{ .name }}
  command: [fleetbus-watcher, --cluster, {{ .name }}{{ if .kubeconfigSecret }}, --kubeconfig, /etc/fleetbus/cluster/{{ default "kubeconfig" .kubeconfigSecret.key }}{{ end }}]
  hub: {{ not .kubeconfigSecret }}
  values: {{ omit . "watch" | toJson }}
  settings: {{ include "fleetbus.watchSettings" (default dict .watch) }}
  nats: {{ include "fleetbus.watcherRights" .name | fromYaml | toJson }}
{{- end }}
{{- with .Values.watchers.pool }}
{{- if .enabled }}
- id: pool
  kind: watcher-pool
  command: [fleetbus-watcher, --pool]
  hub: true
  clusters: true
  gracePeriod: 40
  values: {{ omit . "watch" "enabled" | toJson }}
  settings: {{ include "fleetbus.watchSettings" .watch }}
  nats:
    publish:
      - fleetbus.events.>
      - fleetbus.epochs.>
      - fleetbus.status.>
      - $KV.FLEETBUS_STATE.>
      - $JS.API.DIRECT.GET.KV_FLEETBUS_STATE
      - $JS.API.DIRECT.GET.KV_FLEETBUS_STATE.>
      - $JS.API.DIRECT.GET.FLEETBUS_EVENTS.fleetbus.status.>
    deny: [$KV.FLEETBUS_STATE._hub.>, $KV.FLEETBUS_STATE._controllers.>]
    subscribe: [_INBOX._pool.>, fleetbus.control.*, $KV.FLEETBUS_STATE._pool.>]
{{- end }}
{{- end }}
{{- $hosted := include "fleetbus.hostedReconciler" . | fromJson }}
{{- $own := default list $hosted.controllers }}
- id: projector
  kind: projector
  command: [fleetbus-reconciler]
  hub: true
  clusters: true
  values: {{ merge (omit .Values.projector "reconciler" "env") (pick $hosted "image") (dict "env" (merge dict .Values.projector.env (default dict $hosted.env))) | toJson }}
  rules: {{ default list $hosted.rules | toJson }}
  controllers: {{ $own | toJson }}
  settings:
    {{- with $hosted.modules }}
    FLEETBUS_RECONCILER_MODULES: {{ toJson . | quote }}
    {{- end }}
    FLEETBUS_RECONCILER_NAME: projector
    FLEETBUS_RECONCILER_PROJECTOR: "true"
    FLEETBUS_RECONCILER_NAMESPACE: {{ .Values.clusters.namespace }}
    FLEETBUS_RECONCILER_STREAM_MAX_BYTES: {{ .Values.nats.streamBytes | int64 | quote }}
    FLEETBUS_RECONCILER_BUCKET_MAX_BYTES: {{ .Values.nats.bucketBytes | int64 | quote }}
    {{- if .Values.nats.embedded.enabled }}
    FLEETBUS_RECONCILER_BUS_REPLICAS: {{ include "fleetbus.servers" (list . "nats") | quote }}
    {{- end }}
    {{- with include "fleetbus.watcherSecrets" . | fromJsonArray }}
    FLEETBUS_RECONCILER_WATCHER_SECRETS: {{ include "fleetbus.inRelease" (list $ .) | quote }}
    {{- end }}
    {{- with .Values.externalSubscribers }}
    FLEETBUS_RECONCILER_SUBSCRIBERS: {{ include "fleetbus.durables" . | quote }}
    {{- end }}
    {{- if .Values.archiver.enabled }}
    FLEETBUS_RECONCILER_ARCHIVER: "true"
    {{- end }}
    {{- if .Values.agents.enabled }}
    FLEETBUS_RECONCILER_AGENTS_SECRET: {{ include "fleetbus.agentsSecret" $ | quote }}
    FLEETBUS_RECONCILER_AGENTS_APPROVAL: {{ .Values.agents.approval | quote }}
    {{- end }}
  nats:
    publish:
      - $JS.API.INFO
      {{- range list "FLEETBUS_DISTRIBUTION" "FLEETBUS_EVENTS" "FLEETBUS_PRIOR" "KV_FLEETBUS_STATE" }}
      - $JS.API.STREAM.INFO.{{ . }}
      - $JS.API.STREAM.CREATE.{{ . }}
      {{- end }}
      {{- range list "FLEETBUS_EVENTS" "KV_FLEETBUS_STATE" }}
      - $JS.API.DIRECT.GET.{{ . }}
      - $JS.API.DIRECT.GET.{{ . }}.>
      {{- end }}
      {{- range list "CREATE" "INFO" "DELETE" }}
      - $JS.API.CONSUMER.{{ . }}.FLEETBUS_EVENTS.>
      {{- end }}
      {{- range list "CREATE" "INFO" }}
      - $JS.API.CONSUMER.{{ . }}.FLEETBUS_DISTRIBUTION.>
      {{- end }}
      {{- range list "projector" "projector-replay" }}
      - $JS.API.CONSUMER.MSG.NEXT.FLEETBUS_EVENTS.{{ . }}
      - $JS.ACK.FLEETBUS_EVENTS.{{ . }}.>
      - $JS.ACK.*.*.FLEETBUS_EVENTS.{{ . }}.>
      {{- end }}
      - $KV.FLEETBUS_STATE.>
      - fleetbus.events.>
      - fleetbus.prior.>
      - fleetbus.control.>
      {{- with $own }}
      {{- include "fleetbus.controllerSubjects" . | fromYamlArray | toYaml | nindent 6 }}
      {{- end }}
      {{- if $.Values.agents.enabled }}
      - fleetbus.api.>
      # Answers to registrations: the server names where in the account of the agent. Not allow_responses, which a
      # reload forgets: the next answer would be a violation, and end the process.
      - _R_.>
      {{- end }}
    subscribe: [_INBOX.projector.>, $KV.FLEETBUS_STATE.>{{ if $.Values.agents.enabled }}, fleetbus.answers.*.projector.>, fleetbus.registration.*{{ end }}]
  redis: {{ include "fleetbus.controllerKeys" $own | fromYamlArray | toJson }}
{{- range .Values.reconcilers }}
{{- if ne .name $.Values.projector.reconciler }}
- id: reconciler-{{ .name }}
  kind: reconciler
  command: [fleetbus-reconciler]
  hub: true
  clusters: true
  values: {{ omit . "controllers" "modules" "rules" | toJson }}
  rules: {{ default list .rules | toJson }}
  controllers: {{ .controllers | toJson }}
  settings:
    FLEETBUS_RECONCILER_NAME: reconciler.{{ .name }}
    FLEETBUS_RECONCILER_PROJECTOR: "false"
    FLEETBUS_RECONCILER_NAMESPACE: {{ $.Values.clusters.namespace }}
    FLEETBUS_RECONCILER_MODULES: {{ .modules | toJson | quote }}
  nats:
    {{- $called := include "fleetbus.callSubjects" (list $ (printf "reconciler-%s" .name)) | fromJson }}
    publish: {{ concat (include "fleetbus.controllerSubjects" .controllers | fromYamlArray) $called.publish | toJson }}
    subscribe: {{ concat (list (printf "_INBOX.reconciler.%s.>" .name)) $called.subscribe | toJson }}
  redis: {{ include "fleetbus.controllerKeys" .controllers | fromYamlArray | toJson }}
{{- end }}
{{- end }}
{{- if .Values.distributor.enabled }}
- id: distributor
  kind: distributor
  command: [fleetbus-distributor]
  hub: true
  clusters: true
  values: {{ omit .Values.distributor "enabled" "rules" "requireServiceAccount" "impersonate" | toJson }}
  rules: {{ .Values.distributor.rules | toJson }}
  controllers: [distributor, distributor-targets]
  settings:
    FLEETBUS_DISTRIBUTOR_NAMESPACE: {{ .Values.clusters.namespace }}
    FLEETBUS_DISTRIBUTOR_REQUIRE_SERVICE_ACCOUNT: {{ .Values.distributor.requireServiceAccount | quote }}
  nats:
    {{- $called := include "fleetbus.callSubjects" (list $ "distributor") | fromJson }}
    publish: {{ concat (include "fleetbus.controllerSubjects" (list "distributor" "distributor-targets") | fromYamlArray) (list "$JS.API.DIRECT.GET.FLEETBUS_DISTRIBUTION.fleetbus.votes.>" "fleetbus.distribution.>") $called.publish | toJson }}
    subscribe: {{ concat (list "_INBOX.distributor.>" "fleetbus.votes.>") $called.subscribe | toJson }}
  redis: {{ concat (include "fleetbus.controllerKeys" (list "distributor" "distributor-targets") | fromYamlArray) (list "~fleetbus:{deletions}:*" "~fleetbus:{mcr:*" "~fleetbus:{targets}:*") | toJson }}
{{- end }}
{{- with .Values.archiver }}
{{- if .enabled }}
- id: archiver
  kind: archiver
  command: [fleetbus-archiver]
  values: {{ pick . "resources" "env" "nodeSelector" "tolerations" "affinity" | merge (dict "replicas" 1) | toJson }}
  settings:
    FLEETBUS_ARCHIVER_URL: {{ default "file:///var/lib/fleetbus/archive" .url | quote }}
    FLEETBUS_ARCHIVER_KEEP: {{ .keep | quote }}
    FLEETBUS_ARCHIVER_CHUNK_BYTES: {{ .chunkBytes | int64 | quote }}
    FLEETBUS_ARCHIVER_CHUNK_AGE: {{ .chunkAge | quote }}
    {{- if .url }}
    FLEETBUS_ARCHIVER_ENDPOINT: {{ .endpoint | quote }}
    FLEETBUS_ARCHIVER_REGION: {{ .region | quote }}
    {{- if .credentialsSecret }}
    FLEETBUS_ARCHIVER_CREDENTIALS_DIR: /etc/fleetbus/archive
    {{- end }}
    {{- if .caSecret }}
    FLEETBUS_ARCHIVER_CA_FILE: /etc/fleetbus/archive-ca/ca.crt
    {{- end }}
    {{- end }}
  nats:
    publish:
      - $JS.API.STREAM.INFO.FLEETBUS_EVENTS
      - $JS.API.CONSUMER.INFO.FLEETBUS_EVENTS.archiver
      - $JS.API.CONSUMER.MSG.NEXT.FLEETBUS_EVENTS.archiver
      - $JS.ACK.FLEETBUS_EVENTS.archiver.>
      - $JS.ACK.*.*.FLEETBUS_EVENTS.archiver.>
    subscribe: [_INBOX.archiver.>]
{{- end }}
{{- end }}
{{- with .Values.queryApi }}
{{- if .enabled }}
- id: query-api
  kind: query-api
  command: [fleetbus-query-api]
  hub: true
  clusters: {{ eq .authority "member" }}
  values: {{ pick . "replicas" "resources" "env" | toJson }}
  settings:
    FLEETBUS_QUERY_API_PORT: "8443"
    FLEETBUS_QUERY_API_AUTHENTICATION: token
    FLEETBUS_QUERY_API_AUDIENCE: {{ .audience | quote }}
    FLEETBUS_QUERY_API_AUTHORITY: {{ .authority }}
    FLEETBUS_QUERY_API_CLUSTERS_NAMESPACE: {{ $.Values.clusters.namespace }}
    {{- if .tls.terminated }}
    FLEETBUS_QUERY_API_TLS_TERMINATED: "true"
    {{- else }}
    FLEETBUS_QUERY_API_TLS_CERT_FILE: /etc/fleetbus/tls/tls.crt
    FLEETBUS_QUERY_API_TLS_KEY_FILE: /etc/fleetbus/tls/tls.key
    {{- end }}
    {{- if and $.Values.archiver.enabled $.Values.archiver.url }}
    {{- with $.Values.archiver }}
    FLEETBUS_QUERY_API_ARCHIVE_URL: {{ .url | quote }}
    FLEETBUS_QUERY_API_ARCHIVE_ENDPOINT: {{ .endpoint | quote }}
    FLEETBUS_QUERY_API_ARCHIVE_REGION: {{ .region | quote }}
    {{- if include "fleetbus.archiveCredentials" (list $ "query-api") }}
    FLEETBUS_QUERY_API_ARCHIVE_CREDENTIALS_DIR: /etc/fleetbus/archive
    {{- end }}
    {{- if .caSecret }}
    FLEETBUS_QUERY_API_ARCHIVE_CA_FILE: /etc/fleetbus/archive-ca/ca.crt
    {{- end }}
    {{- end }}
    {{- end }}
  # It reads the past, and the last runs of controllers.
  {{- $calls := and $.Values.agents.enabled (eq .authority "member") }}
  nats:
    publish:
      - $JS.API.STREAM.INFO.FLEETBUS_EVENTS
      {{- range list "FLEETBUS_DISTRIBUTION" "FLEETBUS_EVENTS" "FLEETBUS_PRIOR" }}
      - $JS.API.DIRECT.GET.{{ . }}
      {{- end }}
      {{- if $calls }}
      - fleetbus.api.>
      {{- end }}
    subscribe: [_INBOX.query-api.>{{ if $calls }}, fleetbus.answers.*.query-api.>{{ end }}]
  redis: ["%R~fleetbus:{fleet:*", "%R~fleetbus:{q:*"]
{{- end }}
{{- end }}
{{- end -}}

{{/* The entry of reconcilers whose controllers run in the pods of the projector, as JSON; {} for none. */}}
{{- define "fleetbus.hostedReconciler" -}}
{{- $found := dict -}}
{{- range .Values.reconcilers -}}{{- if eq .name $.Values.projector.reconciler -}}{{- $found = . -}}{{- end -}}{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* The rights of the watcher of one cluster; of a watcher in the cluster itself see fleetbus.agents.rights of the sdk.
Takes its name, or * for what the account of the hub exports to all of them. */}}
{{- define "fleetbus.watcherRights" -}}
publish:
  - fleetbus.events.{{ . }}.>
  - fleetbus.epochs.{{ . }}.>
  - fleetbus.status.{{ . }}.>
  - $KV.FLEETBUS_STATE.{{ . }}.>
  - $JS.API.DIRECT.GET.KV_FLEETBUS_STATE.$KV.FLEETBUS_STATE.{{ . }}.>
  - $JS.API.DIRECT.GET.KV_FLEETBUS_STATE.$KV.FLEETBUS_STATE._hub.{{ . }}.>
  - $JS.API.DIRECT.GET.FLEETBUS_EVENTS.fleetbus.status.{{ . }}.>
subscribe: [{{ printf "_INBOX.watcher.%s.>" . | quote }}, {{ printf "fleetbus.control.%s" . | quote }}]
{{- end -}}

{{/* The rights of a component to call the API servers of clusters with agents; answers are for it alone (rule S4).
Takes [context, component]. */}}
{{- define "fleetbus.callSubjects" -}}
{{- $rights := dict "publish" (list) "subscribe" (list) -}}
{{- if (index . 0).Values.agents.enabled -}}
{{- $rights = dict "publish" (list "fleetbus.api.>") "subscribe" (list (printf "fleetbus.answers.*.%s.>" (index . 1))) -}}
{{- end -}}
{{- $rights | toJson -}}
{{- end -}}

{{/* The settings of what a watcher watches, as JSON. */}}
{{- define "fleetbus.watchSettings" -}}
{{- $found := dict -}}
{{- range $key, $setting := dict "resources" "RESOURCES" "deny" "DENY" "transforms" "TRANSFORMS" -}}
{{- if hasKey $ $key -}}{{- $_ := set $found (printf "FLEETBUS_WATCHER_%s" $setting) (get $ $key | toJson) -}}{{- end -}}
{{- end -}}
{{- if .secrets -}}{{- $_ := set $found "FLEETBUS_WATCHER_SECRETS" "true" -}}{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* The kubeconfig Secrets of the listed watchers, whose tokens the projector renews. */}}
{{- define "fleetbus.watcherSecrets" -}}
{{- $found := list -}}
{{- if has "cluster" (include "fleetbus.providerTypes" . | fromJsonArray) -}}
{{- range .Values.watchers.clusters -}}{{- with .kubeconfigSecret -}}{{- $found = append $found .name -}}{{- end -}}{{- end -}}
{{- end -}}
{{- $found | uniq | toJson -}}
{{- end -}}

{{/* Names of the release's namespace as a JSON list of namespace/name. Takes [context, names]. */}}
{{- define "fleetbus.inRelease" -}}
{{- $found := list -}}
{{- range index . 1 -}}{{- $found = append $found (printf "%s/%s" (index $ 0).Release.Namespace .) -}}{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* The stream that an external subscriber reads; those of its subjects are one, see fleetbus.check. */}}
{{- define "fleetbus.subscriberStream" -}}
{{- if hasPrefix "fleetbus.distribution." (first .subjects) -}}FLEETBUS_DISTRIBUTION{{- else -}}FLEETBUS_EVENTS{{- end -}}
{{- end -}}

{{/* What external subscribers read, for the projector. */}}
{{- define "fleetbus.durables" -}}
{{- $found := list -}}
{{- range . -}}
{{- $found = append $found (dict "durable" (default (printf "subscriber-%s" .name) .durable) "subjects" .subjects) -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* The ends of the names of durables that a controller may read. */}}
{{- define "fleetbus.durableEnds" -}}
{{- list "-1" "-2" "-3" "-4" "-replay" | toJson -}}
{{- end -}}

{{/* The rights of controllers on the bus: their durables, one for a replay, their registrations (rule S4). */}}
{{- define "fleetbus.controllerSubjects" -}}
- $JS.API.STREAM.INFO.FLEETBUS_EVENTS
{{- range $name := . }}
{{- range $end := include "fleetbus.durableEnds" $ | fromJsonArray }}
- $JS.API.CONSUMER.INFO.FLEETBUS_EVENTS.{{ $name }}{{ $end }}
- $JS.API.CONSUMER.MSG.NEXT.FLEETBUS_EVENTS.{{ $name }}{{ $end }}
- $JS.ACK.FLEETBUS_EVENTS.{{ $name }}{{ $end }}.>
- $JS.ACK.*.*.FLEETBUS_EVENTS.{{ $name }}{{ $end }}.>
{{- end }}
- $JS.API.CONSUMER.CREATE.FLEETBUS_EVENTS.{{ $name }}-replay
- $JS.API.CONSUMER.DELETE.FLEETBUS_EVENTS.{{ $name }}-replay
- $KV.FLEETBUS_STATE._controllers.{{ $name }}.*
- $JS.API.DIRECT.GET.KV_FLEETBUS_STATE.$KV.FLEETBUS_STATE._controllers.{{ $name }}.*
{{- end }}
{{- end -}}

{{/* The rights of controllers in the store: the snapshot, and their own queues. */}}
{{- define "fleetbus.controllerKeys" -}}
- "~fleetbus:{fleet:*"
{{- range . }}
- "~fleetbus:{q:{{ . }}}:*"
- "&fleetbus:{q:{{ . }}}:*"
{{- end }}
{{- end -}}

{{/* The Secret with the credentials of the bucket of the archive. Takes [context, component]; empty for none. */}}
{{- define "fleetbus.archiveCredentials" -}}
{{- $ := index . 0 -}}
{{- $own := ternary $.Values.queryApi.archiveCredentialsSecret "" (eq (index . 1) "query-api") -}}
{{- default $.Values.archiver.credentialsSecret $own -}}
{{- end -}}

{{/* Whether a component uses the bucket of the archive. Takes [context, component]; empty for no. */}}
{{- define "fleetbus.usesBucket" -}}
{{- $archiver := (index . 0).Values.archiver -}}
{{- if and $archiver.enabled $archiver.url (has (index . 1) (list "archiver" "query-api")) -}}true{{- end -}}
{{- end -}}
