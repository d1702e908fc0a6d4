//! What is shown on the cluster.

use std::time::Duration;

use crate::demo::{Mood, Screen, Stop};

use super::{
    Failure,
    control_plane::{ALLOWED_ADDRESS, REFUSED_ADDRESS},
    image::TOOLS,
    kubectl::Kubectl,
    until,
};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/helm/egret");
/// Pods reach the cluster DNS, the API server and one name outside the cluster.
const POLICY: &str = "apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: one-name}
spec:
  rules:
  - name: dns
    action: Allow
    to: [{networks: [169.254.20.10/32, 10.100.0.1/32]}]
    protocols: [{udp: {destinationPort: {number: 53}}}, {tcp: {destinationPort: {number: 53}}}]
  - name: api-server
    action: Allow
    to: [{apiServer: {}}]
  - name: by-name
    action: Allow
    to: [{domainNames: [allowed.example.test]}]
  - name: internet
    action: Deny
    to: [{external: {}}]
";
const ALLOWED: &str = "allowed.example.test";
const REFUSED: &str = "refused.example.test";

/// Whether everything was as expected.
pub(super) fn play(kubectl: &Kubectl, screen: Screen, stop: &Stop) -> Result<bool, Failure> {
    start_dns(kubectl, screen, stop)?;
    install(kubectl, screen, stop)?;
    let mut story = Story {
        kubectl,
        screen,
        stop,
        all_as_expected: true,
    };
    story.step("Without a policy both names are reached", || {
        Ok(all_say(kubectl, ALLOWED, "hello")? && all_say(kubectl, REFUSED, "hello")?)
    })?;
    screen.typed("$ kubectl", "apply -f one-name.yaml");
    kubectl.apply(POLICY)?;
    story.step("With the policy the other name is refused", || {
        all_say(kubectl, REFUSED, "refused")
    })?;
    story.step("The allowed name is reached", || {
        all_say(kubectl, ALLOWED, "hello")
    })?;
    kubectl.apply(&new_pod())?;
    story.step(
        "A new pod's first packet is refused; after a lookup of the allowed name the next one passes",
        || {
            let said = kubectl.run(&["logs", "-n", "shop", "new"])?;
            if said.lines().eq(["refused", "hello"]) {
                Ok(true)
            } else {
                Err(said.into())
            }
        },
    )?;
    story.step(
        "The status says that the policy is accepted and programmed",
        || {
            let conditions = kubectl.get(&[
                "clusteregressfirewall",
                "one-name",
                "-o",
                "jsonpath={range .status.conditions[*]}{.type}={.status} {end}",
            ])?;
            let is_true = |condition: &str| {
                conditions
                    .split(' ')
                    .any(|seen| seen == format!("{condition}=True"))
            };
            if is_true("Accepted") && is_true("Programmed") {
                Ok(true)
            } else {
                Err(conditions.into())
            }
        },
    )?;
    screen.typed("$ kubectl", "get clusteregressfirewalls");
    screen.plain(&kubectl.get(&["clusteregressfirewalls"])?);
    screen.typed("$ kubectl", "delete clusteregressfirewall one-name");
    kubectl.run(&["delete", "clusteregressfirewall", "one-name"])?;
    story.step("Without it the other name is reached again", || {
        all_say(kubectl, REFUSED, "hello")
    })?;
    Ok(story.all_as_expected)
}

struct Story<'a> {
    kubectl: &'a Kubectl,
    screen: Screen,
    stop: &'a Stop,
    all_as_expected: bool,
}

impl Story<'_> {
    /// Looks until it is so, for 30 s.
    fn step(&mut self, title: &str, is_so: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
        self.screen.heading(title);
        match until(self.stop, title, Duration::from_secs(30), is_so) {
            Ok(()) => self.screen.coloured(Mood::Good, "seen"),
            Err(error) if self.stop.was_asked() => return Err(error),
            Err(error) => {
                self.all_as_expected = false;
                self.screen
                    .coloured(Mood::Bad, &diagnose(self.kubectl, &error).to_string());
            }
        }
        Ok(())
    }
}

/// Connects as its first action, by address.
fn new_pod() -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: new, namespace: shop}}
spec:
  restartPolicy: Never
  containers:
  - name: new
    image: {TOOLS}
    command: [sh, -c, 'busybox timeout 3 wget -q -O - http://{REFUSED_ADDRESS}/ 2>/dev/null || echo refused; nslookup {ALLOWED} >/dev/null; busybox timeout 3 wget -q -O - http://{ALLOWED_ADDRESS}/']
"
    )
}

/// Whether both clients, one on each node, say this of the page: `hello` when they get it, else `refused`.
fn all_say(kubectl: &Kubectl, name: &str, expected: &str) -> Result<bool, Failure> {
    let pods = kubectl.get(&[
        "pods",
        "-n",
        "shop",
        "-l",
        "app=client",
        "-o",
        "jsonpath={.items[*].metadata.name}",
    ])?;
    let pods = pods.split_whitespace().collect::<Vec<_>>();
    // The resolver of the C library is not in a static program.
    let script = format!(
        "address=$(nslookup {name} | busybox awk '/^Address: / {{ print $2 }}'); [ -n \"$address\" ] || exit 1; \
         busybox timeout 3 wget -q -O - http://$address/ 2>/dev/null || echo refused"
    );
    for pod in &pods {
        let said = kubectl.run(&["exec", "-n", "shop", pod, "--", "sh", "-c", &script])?;
        if said.trim() != expected {
            return Err(format!("{pod} says {} of {name}", said.trim()).into());
        }
    }
    Ok(pods.len() == 2)
}

/// CoreDNS in a pod behind the Service kube-dns, as clusters have it.
fn start_dns(kubectl: &Kubectl, screen: Screen, stop: &Stop) -> Result<(), Failure> {
    screen.heading("The cluster DNS and a client");
    kubectl.apply(&format!(
        "apiVersion: v1
kind: Service
metadata: {{name: kube-dns, namespace: kube-system}}
spec:
  clusterIP: 10.96.0.10
  selector: {{k8s-app: kube-dns}}
  ports: [{{name: dns, port: 53, protocol: UDP}}, {{name: dns-tcp, port: 53, protocol: TCP}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: coredns, namespace: kube-system}}
data:
  Corefile: |
    cluster.local:53 {{
        template ANY ANY {{
            rcode NXDOMAIN
        }}
    }}
    .:53 {{
        forward . /etc/resolv.conf
    }}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: coredns, namespace: kube-system}}
spec:
  selector: {{matchLabels: {{k8s-app: kube-dns}}}}
  template:
    metadata: {{labels: {{k8s-app: kube-dns}}}}
    spec:
      dnsPolicy: Default
      terminationGracePeriodSeconds: 2
      containers:
      - name: coredns
        image: {TOOLS}
        command: [/bin/coredns, -conf, /config/Corefile]
        volumeMounts: [{{name: config, mountPath: /config}}]
      volumes: [{{name: config, configMap: {{name: coredns}}}}]
---
apiVersion: v1
kind: Namespace
metadata: {{name: shop}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: client, namespace: shop}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: client}}}}
  template:
    metadata: {{labels: {{app: client}}}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {{matchLabels: {{app: client}}}}}}
      containers: [{{name: client, image: {TOOLS}}}]
"
    ))?;
    until(
        stop,
        "CoreDNS and the clients run",
        Duration::from_secs(120),
        || {
            Ok(are_rolled_out(
                kubectl,
                &[
                    ("kube-system", "deployment/coredns"),
                    ("shop", "deployment/client"),
                ],
            ))
        },
    )
    .map_err(|error| diagnose(kubectl, &error))?;
    screen.plain(&kubectl.get(&["pods", "-A"])?);
    Ok(())
}

fn install(kubectl: &Kubectl, screen: Screen, stop: &Stop) -> Result<(), Failure> {
    screen.heading("The chart");
    let options = ["--namespace", "kube-system", "--set", "cni.enabled=true"];
    let command = [&["install", "egret", CHART], &options[..]].concat();
    let typed = format!("install egret deploy/helm/egret {}", options.join(" "));
    screen.typed("$ helm", &typed);
    kubectl.helm(&command)?;
    until(
        stop,
        "Egret is ready on both nodes",
        Duration::from_secs(180),
        || {
            Ok(are_rolled_out(
                kubectl,
                &[
                    ("egret-system", "daemonset/egret-enforcer"),
                    ("kube-system", "daemonset/egret-dnsd"),
                    ("egret-system", "deployment/egret-controller"),
                ],
            ))
        },
    )
    .map_err(|error| diagnose(kubectl, &error))?;
    screen.plain(&kubectl.get(&["pods", "-A"])?);
    Ok(())
}

/// Whether all pods of these are ready, each with its namespace.
fn are_rolled_out(kubectl: &Kubectl, all: &[(&str, &str)]) -> bool {
    all.iter().all(|(namespace, name)| {
        kubectl
            .run(&["-n", namespace, "rollout", "status", name, "--timeout=2s"])
            .is_ok()
    })
}

/// With what Kubernetes says of its pods.
fn diagnose(kubectl: &Kubectl, error: &Failure) -> Failure {
    let said = |arguments: &[&str]| kubectl.run(arguments).unwrap_or_else(|error| error.to_string());
    let pods = said(&["get", "pods", "-A", "-o", "wide"]);
    let events = said(&["get", "events", "-A", "--sort-by=.lastTimestamp"]);
    format!("{error}\n{pods}\n{events}").into()
}
