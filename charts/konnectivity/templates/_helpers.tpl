{{- /* The objects of a file of manifests/, as JSON: {"objects": [...]}. */}}
{{- define "konnectivity.read" }}
{{- $objects := list }}
{{- range regexSplit "(?m)^---$" (required (printf "%s is not in the chart" .path) (.root.Files.Get (printf "manifests/%s" .path))) -1 }}
{{- $objects = append $objects (fromYaml .) }}
{{- end }}
{{- dict "objects" $objects | toJson }}
{{- end }}

{{- /* One object, with the label that all have. */}}
{{- define "konnectivity.print" }}
{{- $label := dict "app.kubernetes.io/part-of" "konnectivity" }}
{{- $_ := set .metadata "labels" (merge (default dict (get .metadata "labels")) $label) }}
{{- if hasKey (default dict (get . "spec")) "template" }}
{{- $_ := set .spec.template.metadata "labels" (merge .spec.template.metadata.labels $label) }}
{{- end }}
---
{{ toYaml . }}
{{- end }}

{{- define "konnectivity.image" }}
{{- $image := .Values.image }}
{{- with index $image "digest" }}{{ printf "%s@%s" $image.repository . }}{{ else }}{{ printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) }}{{ end }}
{{- end }}

{{- /* The type of the service that agents come to. */}}
{{- define "konnectivity.serviceType" }}
{{- $behind := or .Values.server.route.host .Values.server.tlsRoute.host }}
{{- default (ternary "LoadBalancer" "ClusterIP" (empty $behind)) .Values.server.service.type }}
{{- end }}

{{- /* What agents know the servers by, beside the service's name, as JSON: {"names": [...]}. */}}
{{- define "konnectivity.sans" }}
{{- dict "names" (concat (default list .Values.pki.clusterSANs) (compact (list .Values.server.route.host .Values.server.tlsRoute.host)) | uniq) | toJson }}
{{- end }}

{{- /* Not empty where OpenShift's SCC restricted-v2 chooses users and groups, and refuses pods that ask for others
       (manifests/components/openshift). No SCC applies in the namespaces that every cluster has. */}}
{{- define "konnectivity.openshift" }}
{{- $without := list "default" "kube-system" "kube-public" "openshift" "openshift-infra" "openshift-node" }}
{{- if and (not (has .Release.Namespace $without)) (or .Values.server.route.host (.Capabilities.APIVersions.Has "security.openshift.io/v1")) }}yes{{ end }}
{{- end }}

{{- /* What server and agents have in common: .object is changed as .values say. */}}
{{- define "konnectivity.pod" }}
{{- $values := .values }}
{{- $template := .object.spec.template }}
{{- $spec := $template.spec }}
{{- /* Null is the manifests' choice, and what is empty none. */}}
{{- range list "priorityClassName" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- $value := index $values . }}
{{- if $value }}{{ $_ := set $spec . $value }}{{ else if not (kindIs "invalid" $value) }}{{ $_ := unset $spec . }}{{ end }}
{{- end }}
{{- $_ := set $spec "nodeSelector" (merge (deepCopy (default dict (index $values "nodeSelector"))) $spec.nodeSelector) }}
{{- $_ := set $template.metadata "labels" (merge $template.metadata.labels (default dict (index $values "podLabels"))) }}
{{- with index $values "podAnnotations" }}{{ $_ := set $template.metadata "annotations" (deepCopy .) }}{{ end }}
{{- $pullSecrets := list }}
{{- range .root.Values.image.pullSecrets }}{{ $pullSecrets = append $pullSecrets (dict "name" .) }}{{ end }}
{{- if $pullSecrets }}{{ $_ := set .object.spec.template.spec "imagePullSecrets" $pullSecrets }}{{ end }}
{{- if include "konnectivity.openshift" .root }}
{{- $_ := set .object.spec.template.spec "securityContext" (omit .object.spec.template.spec.securityContext "runAsUser" "runAsGroup" "fsGroup") }}
{{- end }}
{{- $container := first .object.spec.template.spec.containers }}
{{- $_ := set $container "image" (include "konnectivity.image" .root) }}
{{- $_ := set $container "imagePullPolicy" .root.Values.image.pullPolicy }}
{{- range default list (get .object.spec.template.spec "initContainers") }}
{{- $_ := set . "image" $container.image }}
{{- $_ := set . "imagePullPolicy" $container.imagePullPolicy }}
{{- end }}
{{- with index $values "terminationGracePeriodSeconds" }}
{{- $_ := set $spec "terminationGracePeriodSeconds" (int64 .) }}
{{- /* 15 s less, as in the manifests: preStop takes 5 s of them. */}}
{{- $drain := printf "--graceful-shutdown-timeout=%ds" (sub . 15) }}
{{- $args := list }}
{{- range $container.args }}{{ $args = append $args (ternary $drain . (hasPrefix "--graceful-shutdown-timeout=" .)) }}{{ end }}
{{- $_ := set $container "args" $args }}
{{- end }}
{{- with get .values "resources" }}{{ $_ := set $container "resources" . }}{{ end }}
{{- with get .values "policyConfigMap" }}
{{- $_ := set $container "args" (append $container.args "--policy-file=/etc/konnectivity/policy/policy.yaml") }}
{{- $_ := set $container "volumeMounts" (append (default list (get $container "volumeMounts")) (dict "name" "policy" "mountPath" "/etc/konnectivity/policy" "readOnly" true)) }}
{{- $volumes := default list (get $.object.spec.template.spec "volumes") }}
{{- $_ := set $.object.spec.template.spec "volumes" (append $volumes (dict "name" "policy" "configMap" (dict "name" .))) }}
{{- end }}
{{- with index $values "extraVolumes" }}{{ $_ := set $spec "volumes" (concat (default list (index $spec "volumes")) .) }}{{ end }}
{{- with index $values "extraVolumeMounts" }}{{ $_ := set $container "volumeMounts" (concat (default list (index $container "volumeMounts")) .) }}{{ end }}
{{- if get .values "auditLog" }}{{ $_ := set $container "args" (append $container.args "--audit-log=-") }}{{ end }}
{{- $_ := set $container "args" (concat $container.args (default list (get .values "extraArgs"))) }}
{{- $_ := set $container "env" (concat $container.env (default list (get .values "extraEnv"))) }}
{{- end }}

{{- /* An autoscaler's percentage is of the request, and there is none without: .object asks for .cpu, unless the
       user's .resources say otherwise. */}}
{{- define "konnectivity.requestCPU" }}
{{- $given := default dict .resources }}
{{- if not (or (get (default dict (get $given "requests")) "cpu") (get (default dict (get $given "limits")) "cpu")) }}
{{- $container := first .object.spec.template.spec.containers }}
{{- $requests := merge (dict "cpu" .cpu) (default dict (get $container.resources "requests")) }}
{{- $_ := set $container "resources" (merge (dict "requests" $requests) $container.resources) }}
{{- end }}
{{- end }}

{{- /* The hosted server as manifests/shared/server patches it: a folder for each tenant, or Secrets that it watches. */}}
{{- define "konnectivity.shared" }}
{{- $deployment := first (include "konnectivity.read" (dict "root" .root "path" "shared/server/deployment.yaml") | fromJson).objects }}
{{- $patch := $deployment.spec.template.spec }}
{{- $spec := .object.spec.template.spec }}
{{- $_ := unset .object.spec "replicas" }}
{{- $_ := set .object.spec "minReadySeconds" $deployment.spec.minReadySeconds }}
{{- $_ := set $spec "topologySpreadConstraints" $patch.topologySpreadConstraints }}
{{- $container := first $spec.containers }}
{{- $patched := first $patch.containers }}
{{- $_ := set $container "resources" $patched.resources }}
{{- if .root.Values.server.watchTenants }}
{{- $_ := set $container "args" (append $container.args "--tenants-namespace=$(POD_NAMESPACE)") }}
{{- else }}
{{- $_ := set $container "args" (append $container.args "--tenants-dir=/etc/konnectivity/tenants") }}
{{- $_ := set $container "volumeMounts" (concat $patched.volumeMounts $container.volumeMounts) }}
{{- $volume := first $patch.volumes }}
{{- $source := first $volume.projected.sources | toJson }}
{{- $sources := list }}
{{- range .root.Values.server.tenants }}{{ $sources = append $sources (replace "cluster-a" . $source | fromJson) }}{{ end }}
{{- $_ := set $volume.projected "sources" $sources }}
{{- $_ := set $spec "volumes" (prepend $spec.volumes $volume) }}
{{- end }}
{{- end }}

{{- /* The patches of a kustomize component in the folder .path that are for .object's kind: they add to it or
       remove from it. */}}
{{- define "konnectivity.component" }}
{{- $component := fromYaml (.root.Files.Get (printf "manifests/%s/kustomization.yaml" .path)) }}
{{- range $component.patches }}
{{- if regexMatch (printf "^(%s)$" .target.kind) $.object.kind }}
{{- range fromYamlArray .patch }}
{{- $names := splitList "/" (trimSuffix "/-" .path) | rest }}
{{- $name := last $names }}
{{- $at := $.object }}
{{- range initial $names }}
{{- if kindIs "slice" $at }}{{ $at = index $at (int .) }}{{ else }}{{ $at = get $at . }}{{ end }}
{{- end }}
{{- if eq .op "remove" }}{{ $_ := unset $at $name }}
{{- else if hasSuffix "/-" .path }}{{ $_ := set $at $name (append (get $at $name) .value) }}
{{- else }}{{ $_ := set $at $name .value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
