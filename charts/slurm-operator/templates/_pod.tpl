{{- /* Fields shared by the operator and webhook pods. */ -}}

{{- /*
An image reference from a string, or from repository, tag and digest. The digest takes precedence over the tag. Arguments: root,
image, name, tag (default tag).
*/ -}}
{{- define "operator.imageRef" -}}
{{- if kindIs "string" .image -}}
{{- .image -}}
{{- else -}}
{{- $image := .image | default dict -}}
{{- $repository := $image.repository | default (printf "%s/%s" .root.Values.imageRegistry .name) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "operator.componentImage" -}}
{{- include "operator.imageRef" (dict "root" .root "image" (get .root.Values .name).image "name" "slurm-operator" "tag" .root.Chart.AppVersion) -}}
{{- end -}}

{{- define "operator.podFields" -}}
{{- $component := get .root.Values .name -}}
serviceAccountName: {{ include "operator.serviceAccountName" . }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if and (gt (int $component.replicas) 1) (not $component.topologySpreadConstraints) (not (dig "podAntiAffinity" dict ($component.affinity | default dict))) }}
# Spread replicas over nodes where possible, so that a node failure does not affect all of them.
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    # Count each revision separately. Otherwise the old pods would push the new ones together during an update.
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels:
        {{- include "operator.selectorLabels" . | nindent 8 }}
{{- end }}
{{- range $field := list "nodeSelector" "affinity" "tolerations" "topologySpreadConstraints" }}
{{- with get $component $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "operator.containerFields" -}}
{{- $component := get .root.Values .name -}}
image: {{ include "operator.componentImage" . }}
imagePullPolicy: {{ $component.imagePullPolicy | default .root.Values.imagePullPolicy }}
{{- with $component.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
livenessProbe:
  httpGet:
    path: /healthz
    port: health
  # On a busy node, a healthy process may take seconds to respond. A restart would only add to the load.
  timeoutSeconds: 10
readinessProbe:
  httpGet:
    path: /readyz
    port: health
  timeoutSeconds: 5
{{- end -}}

{{- define "operator.healthPort" -}}
{{- int ((get .root.Values .name).healthPort | default 8081) -}}
{{- end -}}

{{- /* Flags common to both processes, as a YAML list. */ -}}
{{- define "operator.commonArgs" -}}
{{- $component := get .root.Values .name -}}
{{- if and $component.metricsSecure (not (int $component.metricsPort)) -}}
{{- fail (printf "%s.metricsSecure requires %s.metricsPort: set a port or disable metricsSecure" .name .name) -}}
{{- end -}}
{{- $args := list .name
    (printf "--zap-log-level=%v" ($component.logLevel | default "info"))
    (printf "--health-addr=:%s" (include "operator.healthPort" .))
    (printf "--metrics-addr=%s" (eq (int $component.metricsPort) 0 | ternary "0" (printf ":%d" (int $component.metricsPort)))) -}}
{{- if $component.metricsSecure -}}{{- $args = append $args "--metrics-secure" -}}{{- end -}}
{{- with $component.namespaces -}}
{{- $args = append $args (printf "--namespaces=%s" (include "operator.namespaceList" . | fromJsonArray | join ",")) -}}
{{- end -}}
{{- toYaml $args -}}
{{- end -}}
