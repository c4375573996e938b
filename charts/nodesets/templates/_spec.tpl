{{- /*
Merges an overlay into a base, in place. Arguments: a list of the base (modified) and the overlay.
Maps are merged, null removes a key of the base, and any other value replaces the old one, including `false`, `0` and empty lists.
*/ -}}
{{- define "nodesets.overlay" -}}
{{- $base := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if and (kindIs "invalid" $value) (hasKey $base $key) -}}
{{- $_ := unset $base $key -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $base $key)) -}}
{{- include "nodesets.overlay" (list (get $base $key) $value) -}}
{{- else -}}
{{- $_ := set $base $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
Removes values that are null from a map, in place. Below the fields in `keep`, null is part of the value: there it removes a field
that the operator would set. Arguments: a list of the map and the names of these fields.
*/ -}}
{{- define "nodesets.removeNulls" -}}
{{- $map := index . 0 -}}
{{- $keep := index . 1 -}}
{{- range $key, $value := $map -}}
{{- if kindIs "invalid" $value -}}
{{- $_ := unset $map $key -}}
{{- else if and (kindIs "map" $value) (not (has $key $keep)) -}}
{{- include "nodesets.removeNulls" (list $value $keep) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /*
The NodeSets, each merged over the defaults, as JSON. Keys that cannot be part of a host name are checked here, because the schema
could only report them as "not allowed".
*/ -}}
{{- define "nodesets.sets" -}}
{{- $out := dict -}}
{{- range $key, $set := .Values.nodesets -}}
{{- if not (kindIs "invalid" $set) -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,48}[a-z0-9])?$" $key) -}}
{{- fail (printf "nodesets.%s: the key becomes part of host names: use at most 50 lowercase letters, digits and '-', starting with a letter" $key) -}}
{{- end -}}
{{- $merged := dict -}}
{{- include "nodesets.overlay" (list $merged (deepCopy ($.Values.nodesetDefaults | default dict))) -}}
{{- include "nodesets.overlay" (list $merged (deepCopy $set)) -}}
{{- include "nodesets.removeNulls" (list $merged (list "slurmd" "logfile" "spec")) -}}
{{- $_ := set $out $key $merged -}}
{{- end -}}
{{- end -}}
{{- $out | toJson -}}
{{- end -}}

{{- /*
Sets a default, unless the field or one above it is there, even if it is null. Arguments: a list of the map (modified), the path and
the value.
*/ -}}
{{- define "nodesets.setDefault" -}}
{{- $map := index . 0 -}}
{{- $path := index . 1 -}}
{{- $field := first $path -}}
{{- if eq (len $path) 1 -}}
{{- if not (hasKey $map $field) -}}{{- $_ := set $map $field (index . 2) -}}{{- end -}}
{{- else -}}
{{- if not (hasKey $map $field) -}}{{- $_ := set $map $field dict -}}{{- end -}}
{{- if kindIs "map" (get $map $field) -}}
{{- include "nodesets.setDefault" (list (get $map $field) (rest $path) (index . 2)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The spec of a NodeSet, as JSON. Arguments: root, key, set. */ -}}
{{- define "nodesets.spec" -}}
{{- $values := .root.Values -}}
{{- $images := $values.images | default dict -}}
{{- $spec := omit .set "gpu" -}}
{{- $_ := set $spec "controllerRef" (dict "name" (include "nodesets.cluster" .root)) -}}
{{- range $container, $image := dict "slurmd" "slurmd" "logfile" "login" -}}
{{- $image = printf "%s/%s:%s" ($images.registry | default "localhost/keelson") $image ($values.version | default $.root.Chart.AppVersion) -}}
{{- /* No container can do without an image, so null means the default here. */ -}}
{{- if kindIs "invalid" (dig $container "image" nil $spec) -}}
{{- include "nodesets.setDefault" (list $spec (list $container) dict) -}}
{{- $_ := set (get $spec $container) "image" $image -}}
{{- end -}}
{{- with $images.pullPolicy -}}{{- include "nodesets.setDefault" (list $spec (list $container "imagePullPolicy") .) -}}{{- end -}}
{{- end -}}
{{- if eq $values.confineJobs false -}}
{{- /* What slurmd needs to start jobs as their users. */ -}}
{{- $capabilities := dict "drop" (list "ALL") "add" (list "CHOWN" "DAC_OVERRIDE" "FOWNER" "KILL" "SETGID" "SETUID" "SYS_NICE") -}}
{{- include "nodesets.setDefault" (list $spec (list "slurmd" "securityContext" "privileged") false) -}}
{{- $context := $spec.slurmd.securityContext | default dict -}}
{{- if not $context.privileged -}}
{{- include "nodesets.setDefault" (list $spec (list "slurmd" "securityContext" "capabilities") $capabilities) -}}
{{- end -}}
{{- end -}}
{{- /* Slurm node, feature and partition names are derived from the host name: <key>-0, <key>. */ -}}
{{- include "nodesets.setDefault" (list $spec (list "template" "spec" "hostname") (printf "%s-" .key)) -}}
{{- with $images.pullSecrets -}}
{{- include "nodesets.setDefault" (list $spec (list "template" "spec" "imagePullSecrets") .) -}}
{{- end -}}
{{- with include "nodesets.priorityClass" .root -}}
{{- include "nodesets.setDefault" (list $spec (list "template" "spec" "priorityClassName") .) -}}
{{- end -}}
{{- /* Without sssdConfRef, the API would refuse SSH with SSSD. */ -}}
{{- if and $spec.ssh (not (hasKey $spec.ssh "sssdConfRef")) -}}
{{- include "nodesets.setDefault" (list $spec (list "ssh" "sssd") (dict "enabled" false)) -}}
{{- end -}}
{{- with $values.usersConfigMap -}}
{{- include "nodesets.mountUsers" (dict "spec" $spec "key" $.key "configMap" .) -}}
{{- end -}}
{{- with .set.gpu -}}
{{- include "nodesets.setGpu" (dict "spec" $spec "gpu" . "path" (printf "nodesets.%s" $.key)) -}}
{{- end -}}
{{- $spec | toJson -}}
{{- end -}}

{{- /* Mounts the users. Arguments: spec (modified), key, configMap. */ -}}
{{- define "nodesets.mountUsers" -}}
{{- $directory := "/var/lib/extrausers" -}}
{{- range .spec.slurmd.volumeMounts -}}
{{- if eq (trimSuffix "/" .mountPath) $directory -}}
{{- fail (printf "nodesets.%s.slurmd.volumeMounts contains %s, where the chart mounts usersConfigMap: remove one of them" $.key $directory) -}}
{{- end -}}
{{- end -}}
{{- $mount := dict "name" "extrausers" "mountPath" $directory "readOnly" true -}}
{{- $volume := dict "name" "extrausers" "configMap" (dict "name" .configMap "optional" true) -}}
{{- $_ := set .spec.slurmd "volumeMounts" (append (.spec.slurmd.volumeMounts | default list) $mount) -}}
{{- $_ := set .spec.template.spec "volumes" (append (.spec.template.spec.volumes | default list) $volume) -}}
{{- end -}}

{{- /* Sets the pod's limits and the node's Gres, which must agree. Arguments: spec (modified), gpu, path. */ -}}
{{- define "nodesets.setGpu" -}}
{{- $resource := .gpu.resource | required (printf "%s.gpu.resource is not set: name the resource of the device plug-in, such as nvidia.com/gpu" .path) -}}
{{- $count := .gpu.count | required (printf "%s.gpu.count is not set: say how many GPUs each worker has" .path) | int64 -}}
{{- range $kind := list "limits" "requests" -}}
{{- $place := list "slurmd" "resources" $kind $resource -}}
{{- include "nodesets.setDefault" (list $.spec $place $count) -}}
{{- $set := index $.spec.slurmd.resources $kind $resource -}}
{{- if ne (toString $set) (toString $count) -}}
{{- fail (printf "%s.slurmd.resources.%s[%s] is %v, but gpu.count is %d: remove it, gpu sets it" $.path $kind $resource $set $count) -}}
{{- end -}}
{{- end -}}
{{- $gres := printf "gpu:%d" $count -}}
{{- with .gpu.type -}}{{- $gres = printf "gpu:%s:%d" . $count -}}{{- end -}}
{{- /* A node has one Gres parameter, which may list other resources. */ -}}
{{- $words := list -}}
{{- $found := false -}}
{{- range $word := .spec.extraConf | default "" | splitList " " -}}
{{- if hasPrefix "gres=" (lower $word) -}}
{{- if regexMatch "(?i)^gres=(.*,)?gpu(:|,|$)" $word -}}
{{- fail (printf "%s.extraConf sets Gres=gpu, and so does gpu: remove it from extraConf" $.path) -}}
{{- end -}}
{{- $found = true -}}
{{- $words = append $words (printf "%s,%s" $word $gres) -}}
{{- else if trim $word -}}
{{- $words = append $words (trim $word) -}}
{{- end -}}
{{- end -}}
{{- if not $found -}}{{- $words = append $words (printf "Gres=%s" $gres) -}}{{- end -}}
{{- $_ := set .spec "extraConf" (join " " $words) -}}
{{- end -}}
