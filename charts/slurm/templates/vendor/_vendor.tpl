{{- /* Vendor settings. Each one patches the matching NodeSets and may add ConfigMaps. */ -}}

{{- define "slurm.vendor.patchNodeset" -}}
{{- $nodeset := .nodeset -}}
{{- range $patch := list "slurm.vendor.dcgmPatch" "slurm.vendor.googlePatch" -}}
{{- with include $patch $ | fromJson -}}
{{- if and .extraConfMap $nodeset.extraConf -}}
{{- fail (printf "nodesets.%s.extraConf would override the vendor settings: use extraConfMap instead" $.key) -}}
{{- end -}}
{{- include "slurm.patch" (list $nodeset .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Names of ConfigMaps with configuration files, as JSON. A user-provided gres.conf replaces ours. */ -}}
{{- define "slurm.vendor.configMaps" -}}
{{- $names := list -}}
{{- if not (hasKey (.Values.configFiles | default dict) "gres.conf") -}}
{{- range $model := list "a3mega" "a3ultra" -}}
{{- if get $.Values.vendor.google $model -}}
{{- $names = append $names (printf "%s-config-%s" (include "slurm.fullname" $) $model) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $names | toJson -}}
{{- end -}}

{{- define "slurm.vendor.prologMaps" -}}
{{- .Values.vendor.nvidia.dcgm.enabled | ternary (list (printf "%s-prolog-dcgm" (include "slurm.fullname" .))) list | toJson -}}
{{- end -}}

{{- define "slurm.vendor.epilogMaps" -}}
{{- .Values.vendor.nvidia.dcgm.enabled | ternary (list (printf "%s-epilog-dcgm" (include "slurm.fullname" .))) list | toJson -}}
{{- end -}}

{{- /* NVIDIA DCGM: workers with GPUs mount the directory where dcgm-exporter looks up the job that uses a GPU. */ -}}
{{- define "slurm.vendor.dcgmPatch" -}}
{{- $dcgm := .root.Values.vendor.nvidia.dcgm -}}
{{- $gpu := false -}}
{{- range $resources := list (dig "slurmd" "resources" dict .nodeset) (dig "podSpec" "resources" dict .nodeset) -}}
{{- range $part := list "limits" "requests" -}}
{{- if get (get $resources $part | default dict) "nvidia.com/gpu" -}}{{- $gpu = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $patch := dict -}}
{{- if and $dcgm.enabled $gpu -}}
{{- $name := "dcgm-job-mapping" -}}
{{- $_ := set $patch "slurmd" (dict "volumeMounts" (list (dict "name" $name "mountPath" $dcgm.jobMappingDir))) -}}
{{- $_ := set $patch "podSpec" (dict "volumes" (list (dict "name" $name "hostPath" (dict "type" "DirectoryOrCreate" "path" $dcgm.jobMappingDir)))) -}}
{{- end -}}
{{- $patch | toJson -}}
{{- end -}}

{{- /* Google Cloud A3 machines: eight GPUs, nine networks. */ -}}
{{- define "slurm.vendor.googlePatch" -}}
{{- $patch := dict -}}
{{- range $model := list "a3mega" "a3ultra" -}}
{{- range $index, $entry := get $.root.Values.vendor.google $model -}}
{{- if eq ($entry.targetNodeSet | default "") $.key -}}
{{- if ne (len ($entry.networks | default list)) 9 -}}
{{- fail (printf "vendor.google.%s[%d].networks must list 9 networks, not %d" $model $index (len ($entry.networks | default list))) -}}
{{- end -}}
{{- $interfaces := list -}}
{{- range $number, $network := $entry.networks -}}
{{- /* On A3 Ultra, the second host interface uses eth1. */ -}}
{{- $shift := and (eq $model "a3ultra") (gt $number 0) | ternary 1 0 -}}
{{- $interfaces = append $interfaces (dict "interfaceName" (printf "eth%d" (add $number $shift)) "network" $network) -}}
{{- end -}}
{{- $patch = $.root.Files.Get (printf "files/vendor/google-%s.yaml" $model) | fromYaml -}}
{{- $annotations := merge (dict "networking.gke.io/default-interface" "eth0" "networking.gke.io/interfaces" (toJson $interfaces)) (dig "metadata" "annotations" dict $patch) -}}
{{- $_ := set $patch "metadata" (dict "annotations" $annotations) -}}
{{- with $entry.nodePool -}}
{{- $_ := set $patch.podSpec "nodeSelector" (dict "cloud.google.com/gke-nodepool" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $patch | toJson -}}
{{- end -}}
