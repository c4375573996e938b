{{- /*
Roles and bindings for one component. Arguments: root, name, watched, cluster and home (rule lists), namespaces (all if empty).
If namespaces are set, `watched` becomes a Role in each of them and only `cluster` remains cluster-wide.
*/ -}}
{{- define "operator.rbac" -}}
{{- $arg := . -}}
{{- $component := pick . "root" "name" -}}
{{- $account := include "operator.serviceAccountName" $component -}}
{{- $role := eq .name "operator" | ternary (include "operator.fullname" .root) (include "operator.componentName" $component) -}}
{{- $home := include "operator.namespace" .root -}}
{{- $labels := include "operator.labels" $component -}}
{{- $cluster := .namespaces | empty | ternary (concat .watched .cluster) .cluster -}}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $account }}
  namespace: {{ $home }}
  labels:
    {{- $labels | nindent 4 }}
{{- with $cluster }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $role }}
  labels:
    {{- $labels | nindent 4 }}
rules:
  {{- toYaml . | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $role }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $role }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ $home }}
{{- end }}
{{- $roles := list -}}
{{- with .home -}}
{{- $roles = append $roles (dict "namespace" $home "name" (printf "%s-home" $role) "rules" .) -}}
{{- end -}}
{{- range .namespaces -}}
{{- $roles = append $roles (dict "namespace" . "name" $role "rules" $arg.watched) -}}
{{- end -}}
{{- range $roles }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
  labels:
    {{- $labels | nindent 4 }}
rules:
  {{- toYaml .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .namespace }}
  labels:
    {{- $labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ $home }}
{{- end }}
{{- end -}}

{{- /* A secured metrics endpoint authenticates and authorizes its callers through the API server. */ -}}
{{- define "operator.metricsAuthRules" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end -}}
