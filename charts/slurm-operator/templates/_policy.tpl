{{- /*
Peers as YAML, where all addresses leave out the link-local ones unless asked for: clouds answer there with a node's credentials.
No peers mean all addresses but these. Arguments: peers, linkLocal.
*/ -}}
{{- define "operator.policy.peers" -}}
{{- $all := list (dict "ipBlock" (dict "cidr" "0.0.0.0/0")) (dict "ipBlock" (dict "cidr" "::/0")) -}}
{{- $peers := deepCopy (.peers | default $all) -}}
{{- if not (and .peers .linkLocal) -}}
{{- range $peer := $peers -}}
{{- with $peer.ipBlock -}}
{{- $local := get (dict "0.0.0.0/0" (list "169.254.0.0/16") "::/0" (list "fe80::/10" "fd00:ec2::254/128")) .cidr | default list -}}
{{- with concat (.except | default list) $local | uniq -}}{{- $_ := set $peer.ipBlock "except" . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $peers -}}
{{- end -}}
