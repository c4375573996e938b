{{- /* What the operator's and the webhook's pods have in common. */ -}}

{{- /* An image reference from a string or from repository, tag and digest; a digest wins over a tag. */ -}}
{{- define "operator.imageRef" -}}
{{- if kindIs "string" . -}}
{{- . -}}
{{- else if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository .tag -}}
{{- end -}}
{{- end -}}

{{- define "operator.componentImage" -}}
{{- $image := (get .root.Values .name).image -}}
{{- if kindIs "map" $image -}}
{{- $image = merge (dict "tag" ($image.tag | default .root.Chart.AppVersion)) $image -}}
{{- end -}}
{{- include "operator.imageRef" $image -}}
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
  # On a busy machine a healthy process may take seconds to answer; a restart would only make it busier.
  timeoutSeconds: 10
readinessProbe:
  httpGet:
    path: /readyz
    port: health
  timeoutSeconds: 5
{{- end -}}

{{- /* Flags that both processes know, as a YAML list. */ -}}
{{- define "operator.commonArgs" -}}
{{- $component := get .root.Values .name -}}
{{- if and $component.metricsSecure (not (int $component.metricsPort)) -}}
{{- fail (printf "%s.metricsSecure needs %s.metricsPort: set a port, or turn metricsSecure off" .name .name) -}}
{{- end -}}
{{- $args := list .name
    (printf "--zap-log-level=%v" $component.logLevel)
    (printf "--health-addr=:%d" (int $component.healthPort))
    (printf "--metrics-addr=%s" (eq (int $component.metricsPort) 0 | ternary "0" (printf ":%d" (int $component.metricsPort)))) -}}
{{- if $component.metricsSecure -}}{{- $args = append $args "--metrics-secure" -}}{{- end -}}
{{- with $component.namespaces -}}
{{- $args = append $args (printf "--namespaces=%s" (include "operator.namespaceList" . | fromJsonArray | join ",")) -}}
{{- end -}}
{{- toYaml $args -}}
{{- end -}}
