{{- /* The addresses of kube-dns, with commas between them: of a Service of two families each is one that pods ask. */ -}}
{{- define "egret.clusterIP" -}}
{{- if .Values.dns.clusterIP -}}
{{ .Values.dns.clusterIP }}
{{- else if lookup "v1" "Namespace" "" "kube-system" -}}
{{- $service := lookup "v1" "Service" "kube-system" "kube-dns" -}}
{{- if not $service }}{{ fail "dns.clusterIP: there is no Service kube-system/kube-dns; name the address at which pods reach the cluster DNS" }}{{ end -}}
{{ join "," $service.spec.clusterIPs }}
{{- else -}}
10.96.0.10
{{- end -}}
{{- end -}}

{{- define "egret.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end -}}

{{- /* What is one word in the text of the base. */ -}}
{{- define "egret.text" -}}
{{- $values := .root.Values -}}
{{- $local := $values.dns.address -}}
{{- $text := .text | replace "169.254.20.10:" (printf (ternary "[%s]:" "%s:" (contains ":" $local)) $local) | replace "169.254.20.10" $local | replace "cluster.local" $values.dns.domain -}}
{{- if eq $values.dns.kubeProxy "ipvs" -}}
{{- $text = $text | replace ",10.96.0.10" "" | replace " 10.96.0.10\n" "\n" | replace "        - --dns-address=10.96.0.10\n" "" -}}
{{- else -}}
{{- $addresses := include "egret.clusterIP" .root -}}
{{- $option := "        - --dns-address=" -}}
{{- $text = $text | replace ",10.96.0.10" (printf ",%s" $addresses) | replace " 10.96.0.10\n" (printf " %s\n" ($addresses | replace "," " ")) -}}
{{- $text = $text | replace (printf "%s10.96.0.10" $option) (printf "%s%s" $option ($addresses | replace "," (printf "\n%s" $option))) -}}
{{- end -}}
{{- if $values.metrics.enabled -}}
{{- $text = $text | replace "--admin=127.0.0.1:9254" (ternary "--admin=[$(HOST_IP)]:9254" "--admin=$(HOST_IP):9254" $values.metrics.ipv6) | replace "host: 127.0.0.1, port: 9254" "port: 9254" -}}
{{- end -}}
{{ regexReplaceAllLiteral "ghcr.io/egret-project/egret:[0-9a-z.-]+" $text (include "egret.image" .root) }}
{{- end -}}

{{- /* Empty for what is not rendered. */ -}}
{{- define "egret.wanted" -}}
{{- $values := .root.Values -}}
{{- $name := .object.metadata.name -}}
{{- if eq .object.kind "Namespace" -}}
{{- /* Whoever installs into it has made it. */ -}}
{{- if ne $name .root.Release.Namespace }}yes{{ end -}}
{{- else if eq .object.kind "CustomResourceDefinition" -}}
{{- if $values.crds.install }}yes{{ end -}}
{{- else if hasPrefix "egret-dns" $name -}}
{{- if and $values.dnsd.enabled (not $values.cleanup) }}yes{{ end -}}
{{- else if eq .object.kind "Deployment" -}}
{{- if not $values.cleanup }}yes{{ end -}}
{{- else -}}
yes
{{- end -}}
{{- end -}}

{{- define "egret.change" -}}
{{- $values := .root.Values -}}
{{- $object := .object -}}
{{- $labels := dict "app.kubernetes.io/managed-by" .root.Release.Service "app.kubernetes.io/instance" .root.Release.Name "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) -}}
{{- $_ := set $object.metadata "labels" (merge ($object.metadata.labels | default dict) $labels) -}}
{{- if and (eq $object.kind "CustomResourceDefinition") $values.crds.keep -}}
{{- $_ := set $object.metadata "annotations" (merge ($object.metadata.annotations | default dict) (dict "helm.sh/resource-policy" "keep")) -}}
{{- end -}}
{{- if has $object.kind (list "DaemonSet" "Deployment") -}}
{{- $pod := $object.spec.template.spec -}}
{{- range concat ($pod.initContainers | default list) $pod.containers -}}
{{- $_ := set . "imagePullPolicy" $values.image.pullPolicy -}}
{{- end -}}
{{- if $values.image.pullSecrets -}}
{{- $secrets := list -}}
{{- range $values.image.pullSecrets }}{{ $secrets = append $secrets (dict "name" .) }}{{ end -}}
{{- $_ := set $pod "imagePullSecrets" $secrets -}}
{{- end -}}
{{- if eq $object.kind "DaemonSet" -}}
{{- $_ := set $pod "tolerations" $values.tolerations -}}
{{- if $values.nodeSelector }}{{ $_ := set $pod "nodeSelector" $values.nodeSelector }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $object.kind "DaemonSet") (eq $object.metadata.name "egret-enforcer") }}{{ include "egret.enforcer" . }}{{ end -}}
{{- if eq $object.metadata.name "egret-dnsd" }}{{ include "egret.dnsd" . }}{{ end -}}
{{- end -}}

{{- /* Gives the container of a pod the host's BPF file system. */ -}}
{{- define "egret.bpf" -}}
{{- $container := first .containers -}}
{{- $_ := set . "volumes" (append .volumes (dict "name" "bpf" "hostPath" (dict "path" "/sys/fs/bpf"))) -}}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts (dict "name" "bpf" "mountPath" "/sys/fs/bpf")) -}}
{{- end -}}

{{- define "egret.enforcer" -}}
{{- $values := .root.Values -}}
{{- $pod := .object.spec.template.spec -}}
{{- $container := first $pod.containers -}}
{{- $_ := set $container "resources" $values.enforcer.resources -}}
{{- $_ := set .object.spec.updateStrategy.rollingUpdate "maxUnavailable" $values.enforcer.maxUnavailable -}}
{{- $options := list -}}
{{- if ne $values.enforcer.enforcement "enforce" }}{{ $options = append $options (printf "--enforcement=%s" $values.enforcer.enforcement) }}{{ end -}}
{{- if $values.enforcer.onUnknownPod }}{{ $options = append $options (printf "--on-unknown-pod=%s" $values.enforcer.onUnknownPod) }}{{ end -}}
{{- if ne $values.enforcer.backend "auto" }}{{ $options = append $options (printf "--backend=%s" $values.enforcer.backend) }}{{ end -}}
{{- $has_programs := or $values.cleanup (has $values.enforcer.backend (list "ebpf" "both")) -}}
{{- if $has_programs -}}
{{- /* Where it finds pods. */ -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "cgroup" "hostPath" (dict "path" "/sys/fs/cgroup"))) -}}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts (dict "name" "cgroup" "mountPath" "/sys/fs/cgroup" "readOnly" true)) -}}
{{- end -}}
{{- $_ := set $container "args" (concat $container.args $options $values.enforcer.extraArgs) -}}
{{- if $values.metrics.enabled -}}
{{- $_ := set $container "env" (append $container.env (dict "name" "HOST_IP" "valueFrom" (dict "fieldRef" (dict "fieldPath" "status.hostIP")))) -}}
{{- end -}}
{{- if $values.cleanup }}{{ include "egret.cleanup" . }}{{ end -}}
{{- if $values.cni.enabled }}{{ include "egret.cni" . }}{{ end -}}
{{- end -}}

{{- /* Puts egret-cni behind the network plugin of each node, or takes it out again; it needs no capability: the folders are root's. */ -}}
{{- define "egret.cni" -}}
{{- $values := .root.Values -}}
{{- $pod := .object.spec.template.spec -}}
{{- $security := dict "readOnlyRootFilesystem" true "seccompProfile" (dict "type" "RuntimeDefault") "capabilities" (dict "drop" (list "ALL")) -}}
{{- $mounts := list (dict "name" "cni-config" "mountPath" "/host/cni/config") (dict "name" "cni-plugins" "mountPath" "/host/cni/plugins") -}}
{{- $verb := ternary "uninstall" "install" $values.cleanup -}}
{{- $args := list $verb "--conf-dir=/host/cni/config" "--bin-dir=/host/cni/plugins" -}}
{{- if and (not $values.cleanup) (ne $values.cni.onUnknownPod "fail") }}{{ $args = append $args (printf "--on-unknown-pod=%s" $values.cni.onUnknownPod) }}{{ end -}}
{{- $container := dict "name" "cni" "image" (first $pod.containers).image "imagePullPolicy" $values.image.pullPolicy "command" (list "/usr/bin/egret-cni") "args" $args "securityContext" $security "volumeMounts" $mounts -}}
{{- $_ := set $pod "initContainers" (prepend ($pod.initContainers | default list) $container) -}}
{{- $_ := set $pod "volumes" (concat $pod.volumes (list (dict "name" "cni-config" "hostPath" (dict "path" $values.cni.confDir "type" "DirectoryOrCreate")) (dict "name" "cni-plugins" "hostPath" (dict "path" $values.cni.binDir "type" "DirectoryOrCreate")))) -}}
{{- end -}}

{{- /* The enforcer's place on each node is taken by `enforcer cleanup`, and then by one that enforces nothing: a node whose pod is ready is clean. */ -}}
{{- define "egret.cleanup" -}}
{{- $pod := .object.spec.template.spec -}}
{{- $container := first $pod.containers -}}
{{- $_ := set $pod "initContainers" (list (merge (dict "name" "cleanup" "args" (list "cleanup")) (omit (deepCopy $container) "name" "args" "startupProbe" "livenessProbe" "readinessProbe"))) -}}
{{- $_ := set $pod "volumes" (append $pod.volumes (dict "name" "empty" "emptyDir" dict)) -}}
{{- $_ := set $container "volumeMounts" (list (dict "name" "empty" "mountPath" "/empty")) -}}
{{- $_ := set $container "securityContext" (merge (dict "capabilities" (dict "drop" (list "ALL"))) (omit $container.securityContext "capabilities")) -}}
{{- $_ := set $container "args" (list "--source=dir:/empty" "--node=$(NODE_NAME)" "--backend=none" "--link=/empty/.link" "--state=" "--state-objects=" (include "egret.admin" $container)) -}}
{{- $_ := set .object.spec.updateStrategy "rollingUpdate" (dict "maxSurge" 0 "maxUnavailable" "100%") -}}
{{- end -}}

{{- define "egret.admin" -}}
{{- range .args }}{{ if hasPrefix "--admin=" . }}{{ . }}{{ end }}{{ end -}}
{{- end -}}

{{- define "egret.dnsd" -}}
{{- $values := .root.Values -}}
{{- $config := deepCopy $values.dnsd.config -}}
{{- if $values.dnsd.intercept }}{{ $_ := set $config "intercept" (merge (dict "enabled" true) ($config.intercept | default dict)) }}{{ end -}}
{{- if $values.dnsd.kernelAnswers }}{{ $_ := set $config "host" (merge (dict "kernelAnswers" "/sys/fs/bpf/egret-dns") ($config.host | default dict)) }}{{ end -}}
{{- if eq .object.kind "ConfigMap" -}}
{{- if $config }}{{ $_ := set .object.data "dnsd.yaml" (toYaml (merge $config (fromYaml (get .object.data "dnsd.yaml")))) }}{{ end -}}
{{- else if eq .object.kind "DaemonSet" -}}
{{- $container := first .object.spec.template.spec.containers -}}
{{- $_ := set $container "resources" $values.dnsd.resources -}}
{{- if $values.dnsd.kernelAnswers -}}
{{- include "egret.bpf" .object.spec.template.spec -}}
{{- /* Loads the program at the pods' interfaces. */ -}}
{{- $_ := set $container.securityContext.capabilities "add" (append $container.securityContext.capabilities.add "BPF") -}}
{{- end -}}
{{- /* Most fields of its file are read at the start alone; the Corefile is read again by itself. */ -}}
{{- if $config }}{{ $_ := set .object.spec.template.metadata "annotations" (dict "checksum/config" (toJson $config | sha256sum)) }}{{ end -}}
{{- end -}}
{{- end -}}
