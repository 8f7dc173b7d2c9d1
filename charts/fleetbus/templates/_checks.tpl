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
{{- if hasKey $v "enabled" | and (not $v.enabled) -}}
{{- fail "enabled: false has no effect here; name it as the condition of the dependency (condition: fleetbus.enabled in Chart.yaml), or do not install the chart" -}}
{{- end -}}
{{- include "fleetbus.checkOneFleet" . -}}
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
{{- if and $v.agents.enabled $v.agents.service.type -}}
{{- if not $v.nats.embedded.enabled -}}
{{- fail "agents.service.type: it is for the embedded NATS; make a Service or load balancer for that of nats.external.url yourself" -}}
{{- end -}}
{{- if not (include "fleetbus.tlsSecret" (list . "nats")) -}}
{{- fail "agents.service.type: NATS may be reached from outside of this cluster with TLS only; set tls.enabled" -}}
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
{{- range $number, $_ := $v.watchers.clusters -}}
{{- include "fleetbus.checkWatch" (list (printf "watchers.clusters[%d]" $number) .watch) -}}
{{- end -}}
{{- include "fleetbus.checkWatch" (list "watchers.pool" $v.watchers.pool.watch) -}}
{{- include "fleetbus.checkSizes" . -}}
{{- include "fleetbus.checkArchiver" .Values.archiver -}}
{{- $taken := dict "projector" true "projector-replay" true "archiver" true -}}
{{- range $v.reconcilers -}}{{- range $name := .controllers -}}{{- range $end := include "fleetbus.durableEnds" $ | fromJsonArray -}}
{{- $_ := set $taken (printf "%s%s" $name $end) true -}}
{{- end -}}{{- end -}}{{- end -}}
{{- range $name := list "distributor" "distributor-targets" -}}{{- range $end := include "fleetbus.durableEnds" $ | fromJsonArray -}}
{{- $_ := set $taken (printf "%s%s" $name $end) true -}}
{{- end -}}{{- end -}}
{{- range $v.externalSubscribers -}}
{{- $durable := default (printf "subscriber-%s" .name) .durable -}}
{{- if hasKey $taken $durable -}}{{- fail (printf "externalSubscribers: %s: the durable %s belongs to somebody else" .name $durable) -}}{{- end -}}
{{- $_ := set $taken $durable true -}}
{{- $streams := dict -}}
{{- range .subjects -}}{{- $_ := set $streams (hasPrefix "fleetbus.distribution." . | toString) true -}}{{- end -}}
{{- if gt (len $streams) 1 -}}{{- fail (printf "externalSubscribers: %s: fleetbus.distribution is another stream than the other subjects; make two entries" .name) -}}{{- end -}}
{{- end -}}
{{- with $v.projector.reconciler -}}
{{- $hosted := include "fleetbus.hostedReconciler" $ | fromJson -}}
{{- if not $hosted -}}{{- fail (printf "projector.reconciler: there is no entry %s in reconcilers" .) -}}{{- end -}}
{{- $own := keys (omit $hosted "name" "image" "modules" "controllers" "rules" "env") | sortAlpha -}}
{{- if $own -}}{{- fail (printf "reconcilers: %s: %s: its controllers run in the pods of the projector, whose values count" . (join ", " $own)) -}}{{- end -}}
{{- end -}}
{{- range $number, $_ := $v.reconcilers -}}
{{- with .autoscaling -}}{{- if lt (int .maxReplicas) (int .minReplicas) -}}
{{- fail (printf "reconcilers[%d].autoscaling: maxReplicas is %d, which is less than minReplicas, %d" $number (int .maxReplicas) (int .minReplicas)) -}}
{{- end -}}{{- end -}}
{{- if or (has "distributor" .controllers) (has "distributor-targets" .controllers) (has "projector" .controllers) (has "archiver" .controllers) -}}
{{- fail (printf "reconcilers: %s: projector, archiver, distributor and distributor-targets are no names for controllers" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether this cluster is the hub of another release: both would act on the same Clusters and MultiClusterResources. */}}
{{- define "fleetbus.checkOneFleet" -}}
{{- $name := "multiclusterresources.fleetbus.dev" -}}
{{- $owner := dig "metadata" "annotations" dict (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name | default dict) -}}
{{- $release := get $owner "meta.helm.sh/release-name" -}}{{- $namespace := get $owner "meta.helm.sh/release-namespace" -}}
{{- if and $release (ne (printf "%s/%s" $namespace $release) (printf "%s/%s" .Release.Namespace .Release.Name)) -}}
{{- fail (printf "this cluster is the hub of the release %s in the namespace %s, to which the definition %s belongs; a hub has one fleet. If that release was uninstalled, docs/operations/install.md#a-second-fleet says how this one takes over what it has kept" $release $namespace $name) -}}
{{- end -}}
{{- end -}}

{{/* Whether the archiver has one place for its archive. Takes its values. */}}
{{- define "fleetbus.checkArchiver" -}}
{{- if and .enabled (eq .persistence.enabled (ne .url "")) -}}
{{- fail "archiver: set exactly one of archiver.url (s3://bucket/prefix) and archiver.persistence.enabled (a folder on a volume)" -}}
{{- end -}}
{{- end -}}

{{/* Names of resources, of which a schema could only show a long pattern. Takes [path, watch]. */}}
{{- define "fleetbus.checkWatch" -}}
{{- $path := index . 0 -}}{{- $watch := index . 1 | default dict -}}
{{- $word := "[a-z0-9]([-a-z0-9]*[a-z0-9])?" -}}
{{- $words := printf "%s([.]%s)*" $word $word -}}
{{- $version := "v[0-9]+((alpha|beta)[0-9]+)?" -}}
{{- range $number, $entry := $watch.resources -}}
{{- $name := $entry -}}{{- if kindIs "map" $entry -}}{{- $name = $entry.resource -}}{{- end -}}
{{- if not (regexMatch (printf "^([*]|%s|(%s([./]%s)*/)?%s/%s|%s/%s/%s)$" $words $word $word $version $word $words $word $word) $name) -}}
{{- fail (printf "%s.watch.resources[%d]: %q is not a resource: write version/plural in lower case, like v1/pods, group/version/plural, like apps/v1/deployments, or * for all" $path $number $name) -}}
{{- end -}}
{{- if and (kindIs "map" $entry) (eq $name "*") (gt (len $entry) 1) -}}
{{- fail (printf "%s.watch.resources[%d]: * cannot be narrowed; name the resources, each with its own %s" $path $number (omit $entry "resource" | keys | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- range $number, $name := $watch.deny -}}
{{- if or (not (regexMatch (printf "^%s/%s$" $words $word) $name)) (regexMatch (printf "^%s/" $version) $name) -}}
{{- fail (printf "%s.watch.deny[%d]: %q is not a resource: write group/plural without a version, like core/events or events.k8s.io/events" $path $number $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether what the stores reserve has room on their disks and in their memory (docs/operations/sizing.md). */}}
{{- define "fleetbus.checkSizes" -}}
{{- $nats := .Values.nats -}}{{- $valkey := .Values.valkey.embedded -}}
{{- if $nats.embedded.enabled -}}
{{- $reserved := include "fleetbus.natsFileStore" . | int64 -}}
{{- $least := mulf 1.1 $reserved -}}
{{- if lt (include "fleetbus.bytes" $nats.embedded.storage.size | float64) $least -}}
{{- fail (printf "nats.embedded.storage.size: %s is too small: nats.streamBytes (%d) and a quarter of it, nats.bucketBytes (%d), and 384 MiB for the rest are reserved on it; make it at least %s (docs/operations/sizing.md), or the two smaller" $nats.embedded.storage.size (int64 $nats.streamBytes) (int64 $nats.bucketBytes) (include "fleetbus.mebibytes" $least)) -}}
{{- end -}}
{{- end -}}
{{- if $valkey.enabled -}}
{{- $data := int64 $valkey.maxMemory -}}
{{- $limit := ($valkey.resources.limits | default dict).memory -}}
{{- $bytes := include "fleetbus.bytes" $limit | float64 -}}
{{- if and $bytes (lt $bytes (mulf 1.25 $data)) -}}
{{- fail (printf "valkey.embedded.maxMemory: %d is too much for valkey.embedded.resources.limits.memory, %v: rewriting the append-only file needs memory beside the data, or Kubernetes kills the server; make the limit at least %s, better 1.4 times maxMemory" $data $limit (include "fleetbus.mebibytes" (mulf 1.25 $data))) -}}
{{- end -}}
{{- if lt (include "fleetbus.bytes" $valkey.storage.size | float64) (mulf 2 $data) -}}
{{- fail (printf "valkey.embedded.storage.size: %s is too small for valkey.embedded.maxMemory, %d: the append-only file and its rewriting need twice the data, at times thrice; make it at least %s (docs/operations/sizing.md), or maxMemory smaller" $valkey.storage.size $data (include "fleetbus.mebibytes" (mulf 2 $data))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The bytes of a quantity like 8Gi; 0 if there is none. */}}
{{- define "fleetbus.bytes" -}}
{{- $text := toString (default "0" .) -}}
{{- $unit := regexFind "(m|[kMGTP]i?|Ki)$" $text -}}
{{- $factors := dict "" 1 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- printf "%.0f" (mulf (trimSuffix $unit $text) (get $factors $unit)) -}}
{{- end -}}

{{/* Bytes as a quantity, rounded up. */}}
{{- define "fleetbus.mebibytes" -}}
{{- printf "%.0fMi" (ceil (divf . 1048576)) -}}
{{- end -}}
