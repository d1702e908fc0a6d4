//! The cluster that the rows are about.

/// Two nodes; namespaces `shop` (team a), `tools` (team b) and `bare`, which has no object; pods of all sorts.
pub const CLUSTER: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: a}}
---
apiVersion: v1
kind: Namespace
metadata: {name: tools, labels: {team: b}}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {role: worker}}
spec: {podCIDRs: [10.0.0.0/24, "fd00::/120"]}
status: {addresses: [{type: InternalIP, address: 10.9.0.1}, {type: InternalIP, address: "fd09::1"}, {type: ExternalIP, address: 198.51.100.1}, {type: Hostname, address: 10.9.0.77}]}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {role: master}}
spec: {podCIDRs: [10.0.1.0/24]}
status: {addresses: [{type: InternalIP, address: 10.9.0.2}, {type: ExternalIP, address: 198.51.100.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web, tier: front}}
spec:
  nodeName: n1
  initContainers:
  - {name: setup, ports: [{name: setup, containerPort: 1111}]}
  - {name: proxy, restartPolicy: Always, ports: [{name: metrics, containerPort: 9090}]}
  containers:
  - {name: a, ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 5353, protocol: UDP}]}
  - {name: b, ports: [{name: http, containerPort: 8081}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {nodeName: n1, containers: [{name: a, ports: [{name: http, containerPort: 9000}, {name: sig, containerPort: 3868, protocol: SCTP}]}]}
status: {phase: Running, podIPs: [{ip: 10.0.0.2}, {ip: "fd00::2"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: done, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: []}
status: {phase: Succeeded, podIPs: [{ip: 10.0.0.9}]}
---
apiVersion: v1
kind: Pod
metadata: {name: leaving, namespace: shop, labels: {app: web}, deletionTimestamp: "2026-01-01T00:00:00Z"}
spec: {nodeName: n1, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.8}]}
---
apiVersion: v1
kind: Pod
metadata: {name: agent, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, hostNetwork: true, containers: []}
status: {phase: Running, podIPs: [{ip: 10.9.0.1}]}
---
apiVersion: v1
kind: Pod
metadata: {name: remote, namespace: shop, labels: {app: remote}}
spec: {nodeName: n2, hostNetwork: true, containers: []}
status: {phase: Running, podIPs: [{ip: 10.9.0.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: tools, labels: {app: web}}
spec: {nodeName: n2, containers: [{name: a, ports: [{name: http, containerPort: 7070}]}]}
status: {phase: Running, podIPs: [{ip: 10.0.1.2}]}
---
apiVersion: v1
kind: Pod
metadata: {name: job, namespace: tools, labels: {app: job, tier: back}}
spec: {nodeName: n2, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.1.1}, {ip: "fd00::11"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: pod, namespace: bare}
spec: {nodeName: n2, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.2.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web, tier: front}, clusterIP: 10.96.0.10, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {selector: {app: db}, clusterIP: 10.96.0.11, ports: [{port: 80, targetPort: http}]}
"#;
