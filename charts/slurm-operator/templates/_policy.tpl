{{- /*
Peers as YAML. 0.0.0.0/0 and ::/0 exclude link-local addresses unless linkLocal is set: cloud metadata services serve node credentials there.
Without peers, the result is all addresses except link-local ones. Arguments: peers, linkLocal.
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
