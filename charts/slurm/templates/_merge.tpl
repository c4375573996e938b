{{- /*
Lay one tree over another, in place. Arguments: a list of the base (changed) and what lies over it.
Maps are merged, null removes, anything else replaces, `false`, `0` and empty lists included.
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

{{- /* As overlay, but lists are merged too: entries of the same `key` or `name` into one, the others appended. */ -}}
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
The enabled entries of a map of sets, each over the defaults, as JSON. Of a key that cannot be part of a host name the
schema could only say that it is "not allowed".
Arguments: path, sets, defaults.
*/ -}}
{{- define "slurm.enabledSets" -}}
{{- $out := dict -}}
{{- $defaults := .defaults | default dict -}}
{{- $path := .path -}}
{{- range $key, $set := .sets -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?$" $key) -}}
{{- fail (printf "%s.%s: the key becomes part of host names: write at most 50 lower-case letters, digits and '-'" $path $key) -}}
{{- end -}}
{{- $merged := deepCopy $defaults -}}
{{- include "slurm.guardImages" (dict "path" (printf "%s.%s" $path $key) "set" ($set | default dict) "defaults" $defaults) -}}
{{- include "slurm.overlay" (list $merged (deepCopy ($set | default dict))) -}}
{{- if $merged.enabled -}}{{- $_ := set $out $key $merged -}}{{- end -}}
{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{- /*
A part of an image reference has nothing to go with where the defaults hold a whole one: the rest would silently be taken from
elsewhere. Arguments: path, set, defaults.
*/ -}}
{{- define "slurm.guardImages" -}}
{{- range $name, $container := .set -}}
{{- if and (kindIs "map" $container) (kindIs "map" (get $.defaults $name)) -}}
{{- $image := get $container "image" -}}
{{- if and (kindIs "map" $image) (kindIs "string" (get (get $.defaults $name) "image")) (not (get $image "repository")) -}}
{{- fail (printf "%s.%s.image has no repository, and its defaults are one string, not parts: add repository, or write the defaults as repository and tag" $.path $name) -}}
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
