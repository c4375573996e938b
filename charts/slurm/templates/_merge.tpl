{{- /*
Merges an overlay into a base, in place. Arguments: a list of the base (modified) and the overlay.
Maps are merged, null removes a key, and any other value replaces the old one, including `false`, `0` and empty lists.
*/ -}}
{{- define "slurm.overlay" -}}
{{- $base := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $base $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $base $key)) -}}
{{- include "slurm.overlay" (list (get $base $key) $value) -}}
{{- else -}}
{{- $_ := set $base $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Like overlay, but also merges lists: entries with the same `key` or `name` are merged, others are appended. */ -}}
{{- define "slurm.patch" -}}
{{- $base := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- $old := get $base $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" $old) -}}
{{- include "slurm.patch" (list $old $value) -}}
{{- else if and (kindIs "slice" $value) (kindIs "slice" $old) -}}
{{- $_ := set $base $key (include "slurm.patchList" (list $old $value) | fromJsonArray) -}}
{{- else -}}
{{- $_ := set $base $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "slurm.patchList" -}}
{{- $out := index . 0 -}}
{{- $byId := dict -}}
{{- range $out -}}
{{- with include "slurm.itemId" . -}}{{- $_ := set $byId . true -}}{{- end -}}
{{- end -}}
{{- range $new := index . 1 -}}
{{- $id := include "slurm.itemId" $new -}}
{{- if and $id (hasKey $byId $id) -}}
{{- range $out -}}
{{- if eq (include "slurm.itemId" .) $id -}}{{- include "slurm.patch" (list . $new) -}}{{- end -}}
{{- end -}}
{{- else -}}
{{- $out = append $out $new -}}
{{- end -}}
{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{- define "slurm.itemId" -}}
{{- if kindIs "map" . -}}{{- coalesce .key .name "" -}}{{- end -}}
{{- end -}}

{{- /*
The enabled entries of a map of sets, each merged over the defaults, as JSON. Keys that cannot be part of a host name are checked
here, because the schema could only report them as "not allowed".
Arguments: path, sets, defaults.
*/ -}}
{{- define "slurm.enabledSets" -}}
{{- $out := dict -}}
{{- $defaults := .defaults | default dict -}}
{{- $path := .path -}}
{{- range $key, $set := .sets -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?$" $key) -}}
{{- fail (printf "%s.%s: the key becomes part of host names: use at most 50 lowercase letters, digits and '-'" $path $key) -}}
{{- end -}}
{{- $merged := deepCopy $defaults -}}
{{- include "slurm.guardImages" (dict "path" (printf "%s.%s" $path $key) "set" ($set | default dict) "defaults" $defaults) -}}
{{- include "slurm.overlay" (list $merged (deepCopy ($set | default dict))) -}}
{{- if $merged.enabled -}}{{- $_ := set $out $key $merged -}}{{- end -}}
{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{- /*
Rejects a partial image reference if the default is a complete reference string: the remaining parts would silently come from
elsewhere. Arguments: path, set, defaults.
*/ -}}
{{- define "slurm.guardImages" -}}
{{- range $name, $container := .set -}}
{{- if and (kindIs "map" $container) (kindIs "map" (get $.defaults $name)) -}}
{{- $image := get $container "image" -}}
{{- if and (kindIs "map" $image) (kindIs "string" (get (get $.defaults $name) "image")) (not (get $image "repository")) -}}
{{- fail (printf "%s.%s.image has no repository, and its default is a complete reference string: add repository, or set the default as repository and tag" $.path $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "slurm.loginsets" -}}
{{- include "slurm.enabledSets" (dict "path" "loginsets" "sets" .Values.loginsets "defaults" .Values.loginsetDefaults) -}}
{{- end -}}

{{- define "slurm.nodesets" -}}
{{- $sets := include "slurm.enabledSets" (dict "path" "nodesets" "sets" .Values.nodesets "defaults" .Values.nodesetDefaults) | fromJson -}}
{{- range $key, $set := $sets -}}
{{- include "slurm.vendor.patchNodeset" (dict "root" $ "key" $key "nodeset" $set) -}}
{{- end -}}
{{- $sets | toJson -}}
{{- end -}}
