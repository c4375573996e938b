{{- /* Converts values to the format of the custom resources. Every template here returns JSON or a plain string. */ -}}

{{- /*
An image reference from a string, or from repository, tag and digest. The digest takes precedence over the tag. Defaults come from
the release: <imageRegistry>/<name> and the chart's Slurm version. Arguments: root, image, name.
*/ -}}
{{- define "slurm.image" -}}
{{- if kindIs "string" .image -}}
{{- .image -}}
{{- else -}}
{{- $image := .image | default dict -}}
{{- $repository := $image.repository | default (printf "%s/%s" .root.Values.imageRegistry .name) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Arguments: root, container (values of one container), name (of its image, see slurm.image). */ -}}
{{- define "slurm.container" -}}
{{- $out := deepCopy (.container | default dict) -}}
{{- $_ := set $out "image" (include "slurm.image" (dict "root" .root "image" $out.image "name" .name)) -}}
{{- $_ := set $out "imagePullPolicy" ($out.imagePullPolicy | default .root.Values.imagePullPolicy) -}}
{{- $out | toJson -}}
{{- end -}}

{{- /* Metadata of a custom resource. Arguments: root, name, metadata (user-provided labels and annotations), annotations (set by the chart). */ -}}
{{- define "slurm.metadata" -}}
{{- $user := .metadata | default dict -}}
{{- $out := dict "name" .name "namespace" (include "slurm.namespace" .root)
    "labels" (merge (dict) ($user.labels | default dict) (include "slurm.objectLabels" .root | fromYaml)) -}}
{{- with merge (dict) ($user.annotations | default dict) (.annotations | default dict) -}}
{{- $_ := set $out "annotations" . -}}
{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{- /* A pod template. Arguments: root, metadata, podSpec. */ -}}
{{- define "slurm.template" -}}
{{- $spec := deepCopy (.podSpec | default dict) -}}
{{- with concat ($spec.imagePullSecrets | default list) (.root.Values.imagePullSecrets | default list) -}}
{{- $_ := set $spec "imagePullSecrets" . -}}
{{- end -}}
{{- if and .root.Values.priorityClass.enabled (not $spec.priorityClassName) -}}
{{- $_ := set $spec "priorityClassName" .root.Values.priorityClass.name -}}
{{- end -}}
{{- $out := dict "spec" $spec -}}
{{- with .metadata -}}{{- $_ := set $out "metadata" . -}}{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{- /*
`Key=value` lines from a map, sorted by key. Lists are joined with commas. true and false become YES and NO
(YAML parses a bare YES as true). Keys with null, "" or [] are omitted.
*/ -}}
{{- define "slurm.confLines" -}}
{{- $lines := list -}}
{{- range $key, $value := . -}}
{{- $text := "" -}}
{{- if kindIs "slice" $value -}}
{{- $parts := list -}}
{{- range $value -}}{{- $parts = append $parts (include "slurm.confValue" .) -}}{{- end -}}
{{- $text = join "," $parts -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $text = include "slurm.confValue" $value -}}
{{- end -}}
{{- if $text -}}{{- $lines = append $lines (printf "%s=%s" $key $text) -}}{{- end -}}
{{- end -}}
{{- $lines | toJson -}}
{{- end -}}

{{- define "slurm.confValue" -}}
{{- if kindIs "bool" . -}}
{{- ternary "YES" "NO" . -}}
{{- else if kindIs "string" . -}}
{{- . -}}
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{- /* Raw text, or lines from a map if the text is empty. Arguments: raw, map, separator. */ -}}
{{- define "slurm.conf" -}}
{{- if .raw -}}
{{- .raw | trimSuffix "\n" -}}
{{- else -}}
{{- include "slurm.confLines" .map | fromJsonArray | join .separator -}}
{{- end -}}
{{- end -}}

{{- /* Sets the SSSD fields in a spec that runs sshd. Arguments: root, spec (modified), values. */ -}}
{{- define "slurm.setSssd" -}}
{{- if eq (include "slurm.usesSssd" .values) "true" -}}
{{- $_ := set .spec "sssdConfRef" (include "slurm.sssdConfRef" .root | fromJson) -}}
{{- else -}}
{{- $_ := set .spec "sssd" (dict "enabled" false) -}}
{{- end -}}
{{- end -}}

{{- define "slurm.usesSssd" -}}
{{- dig "sssd" "enabled" true . -}}
{{- end -}}
