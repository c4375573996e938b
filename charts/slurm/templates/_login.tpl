{{- /*
Limits a login pod to the capabilities that it needs, and sets the RuntimeDefault seccomp profile. A changed pod template ends all
login sessions, so an existing LoginSet keeps its settings. The two settings are decided independently, because either may already
have been set by other means. Arguments: root, name, spec (modified), values.
*/ -}}
{{- define "slurm.restrictLogin" -}}
{{- $wanted := .values.restrictCapabilities -}}
{{- $capabilities := $wanted -}}
{{- $seccomp := $wanted -}}
{{- if kindIs "invalid" $wanted -}}
{{- $before := lookup "slinky.slurm.net/v1beta1" "LoginSet" (include "slurm.namespace" .root) .name -}}
{{- $container := dig "spec" "login" "securityContext" dict $before | default dict -}}
{{- $pod := dig "spec" "template" "spec" "securityContext" dict $before | default dict -}}
{{- $capabilities = or (empty $before) (not (empty $container.capabilities)) -}}
{{- $seccomp = or (empty $before) (not (empty $container.seccompProfile)) (not (empty $pod.seccompProfile)) -}}
{{- end -}}
{{- $container := .spec.login.securityContext | default dict -}}
{{- if and $capabilities (not (or $container.privileged (hasKey $container "capabilities"))) -}}
{{- $_ := set $container "capabilities" (dict
    "drop" (list "ALL")
    "add" (list "AUDIT_WRITE" "CHOWN" "DAC_OVERRIDE" "FOWNER" "KILL" "NET_BIND_SERVICE" "SETGID" "SETUID" "SYS_CHROOT")) -}}
{{- $_ := set .spec.login "securityContext" $container -}}
{{- end -}}
{{- $pod := .spec.template.spec.securityContext | default dict -}}
{{- if and $seccomp (not (or $container.privileged $container.seccompProfile $pod.seccompProfile)) -}}
{{- $_ := set $pod "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- $_ := set .spec.template.spec "securityContext" $pod -}}
{{- end -}}
{{- end -}}
