//! The API server reaches nodes, pods and Services by proxy-server and the chart's agents alone: the control plane cannot connect to them.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    process::{Child, Command, Stdio},
};

use crate::extension::{GROUP, HELLO, REFUSAL};

use super::{
    Failure,
    image::TOOLS,
    kubectl::Kubectl,
    machine::output,
    network::Network,
    objects::networks,
    proxy_server::{MANIFESTS, POLICIES},
    story::Story,
};

const NO_AGENT: &str = "No agent available";
/// A port of the control plane, for kubectl.
const FORWARDED: u16 = 18080;
const KUBELET: u16 = 10250;

/// What the chart is installed with. The server is no pod of this cluster: its control plane has no kubelet.
pub(super) fn values(network: Network) -> String {
    let address = network.control_plane()[0];
    format!("konnectivity.enabled=true,konnectivity.server.enabled=false,konnectivity.servers={{{address}}}")
}

/// Before the chart is installed.
pub(super) fn without_agents(story: &mut Story<'_>) -> Result<(), Failure> {
    let rights = format!("{MANIFESTS}/rbac.yaml");
    story
        .screen
        .typed("$ kubectl", "apply -f deploy/konnectivity/rbac.yaml");
    story.kubectl.run(&["apply", "-f", &rights])?;
    fails(story)
}

/// Waits until no agent is left, as when the chart was uninstalled.
pub(super) fn without_agents_again(story: &mut Story<'_>) -> Result<(), Failure> {
    story.step("The agents have ended", |kubectl| {
        let pods = ["pods", "-n", "kube-system", "-l", "k8s-app=konnectivity-agent"];
        Ok(kubectl.get(&[&pods[..], &["-o", "name"]].concat())?.is_empty())
    })?;
    fails(story)
}

fn fails(story: &mut Story<'_>) -> Result<(), Failure> {
    story.step(
        "Without an agent the API server reaches no kubelet, and kubectl says why",
        |kubectl| {
            let client = client_on(kubectl, "node-1")?;
            let of_client = ["-n", "shop", &client];
            for command in [
                [&["logs"], &of_client[..]].concat(),
                [&["exec"], &of_client[..], &["--", "cat", "/etc/hostname"]].concat(),
            ] {
                refused(kubectl, &command, NO_AGENT)?;
            }
            Ok(true)
        },
    )
}

/// When agents run.
pub(super) fn play(story: &mut Story<'_>) -> Result<(), Failure> {
    story
        .screen
        .heading("The API server's network proxy: the chart's agents connect to proxy-server");
    let machine = story.cluster.control_plane.machine();
    let connects = |address: IpAddr| {
        machine
            .run(&[
                "busybox",
                "nc",
                "-w",
                "5",
                &address.to_string(),
                &KUBELET.to_string(),
            ])
            .is_ok()
    };
    let direct = story.cluster.nodes[0].addresses().into_iter().any(connects);
    story.conclude(!direct, "the control plane itself connects to no kubelet");
    create_extension(&story.kubectl)?;
    story.step("By it kubectl logs and exec reach pods of all nodes", |kubectl| {
        for node in ["node-1", "node-2", "node-3"] {
            let client = client_on(kubectl, node)?;
            let said = kubectl.run(&["exec", "-n", "shop", &client, "--", "cat", "/etc/hostname"])?;
            if said.trim() != client {
                return Err(said.into());
            }
        }
        let said = kubectl.run(&["logs", "-n", "shop", "hook", "-c", "page"])?;
        Ok(said.trim() == "a line of a container")
    })?;
    port_forward(story)?;
    story.step("a Service by its page of the API server", |kubectl| {
        let page = kubectl.get(&["--raw", "/api/v1/namespaces/shop/services/hook:http/proxy/"])?;
        Ok(page == "hello\n")
    })?;
    story.step("an aggregated API", |kubectl| {
        let page = kubectl.get(&["--raw", &format!("/apis/{GROUP}/v1/hello")])?;
        Ok(page == HELLO)
    })?;
    story.step("and a webhook of a Service", |kubectl| {
        let command = ["create", "configmap", "-n", "shop", "refused"];
        refused(kubectl, &command, REFUSAL)?;
        Ok(true)
    })?;
    delete_extension(&story.kubectl)?;
    policy(story)
}

fn port_forward(story: &mut Story<'_>) -> Result<(), Failure> {
    let mut forward = Forward(
        story
            .kubectl
            .command_of(&[
                "port-forward",
                "-n",
                "shop",
                "pod/hook",
                &format!("{FORWARDED}:8080"),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let machine = story.cluster.control_plane.machine();
    let url = format!("http://127.0.0.1:{FORWARDED}/");
    let is_there = || machine.run(&["busybox", "wget", "-q", "-O", "-", &url]);
    let seen = crate::is_soon(std::time::Duration::from_secs(20), || {
        is_there().is_ok_and(|page| page == "hello\n")
    });
    story.screen.heading("kubectl port-forward");
    let ended = forward.0.try_wait()?;
    story.conclude(seen && ended.is_none(), if seen { "seen" } else { "not seen" });
    Ok(())
}

/// Ends with this.
struct Forward(Child);

impl Drop for Forward {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn policy(story: &mut Story<'_>) -> Result<(), Failure> {
    let file = story
        .cluster
        .control_plane
        .machine()
        .path(&format!("{POLICIES}/no-exec.yaml"));
    let kubelet = SocketAddr::new(story.cluster.nodes[2].addresses()[0], KUBELET);
    fs::write(&file, no_exec(kubelet.ip()))?;
    let refusal =
        format!("egress denied by APIServerEgressPolicy/no-exec rule 0 (third-node): cluster -> {kubelet}");
    let exec = |kubectl: &Kubectl, node: &str| -> Result<Vec<String>, Failure> {
        let pod = client_on(kubectl, node)?;
        let command = ["exec", "-n", "shop", &pod, "--", "cat", "/etc/hostname"];
        Ok(command.map(str::to_owned).to_vec())
    };
    let mut said = String::new();
    story.step(
        "A rule refuses exec on the third node, and kubectl names policy and rule",
        |kubectl| {
            let command = exec(kubectl, "node-3")?;
            let command = command.iter().map(String::as_str).collect::<Vec<_>>();
            said = refused(kubectl, &command, &refusal)?;
            Ok(true)
        },
    )?;
    story.screen.output(&said);
    story.step("On the first node it does not", |kubectl| {
        let command = exec(kubectl, "node-1")?;
        kubectl.run(&command.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(true)
    })?;
    let log = story
        .cluster
        .control_plane
        .machine()
        .folder()
        .join("proxy-server.log");
    let log = fs::read_to_string(log)?;
    let record = log
        .lines()
        .find(|line| line.contains("\"denied\"") && line.contains("third-node"));
    story.conclude(
        record.is_some(),
        record.unwrap_or("the audit log does not have it"),
    );
    fs::remove_file(&file)?;
    story.step("Without the policy it is reached again", |kubectl| {
        let command = exec(kubectl, "node-3")?;
        kubectl.run(&command.iter().map(String::as_str).collect::<Vec<_>>())?;
        Ok(true)
    })
}

/// The API server does not reach the kubelet of a node.
fn no_exec(node: IpAddr) -> String {
    format!(
        "apiVersion: policy.egret.dev/v1alpha1
kind: APIServerEgressPolicy
metadata: {{name: no-exec}}
spec:
  selections: [cluster]
  rules:
  - name: third-node
    action: Deny
    to: [{{networks: {}}}]
    protocols: [{{tcp: {{destinationPort: {{number: {KUBELET}}}}}}}]
",
        networks([node])
    )
}

/// What the command says when it fails with this text; else an error.
fn refused(kubectl: &Kubectl, command: &[&str], expected: &str) -> Result<String, Failure> {
    match kubectl.run(command) {
        Err(error) if error.to_string().contains(expected) => Ok(error.to_string()),
        Err(error) => Err(error),
        Ok(said) => Err(format!("it succeeds: {said}").into()),
    }
}

/// The client that runs on a node.
fn client_on(kubectl: &Kubectl, node: &str) -> Result<String, Failure> {
    let pod = kubectl.get(&[
        "pods",
        "-n",
        "shop",
        "-l",
        "app=client",
        "--field-selector",
        &format!("spec.nodeName={node}"),
        "-o",
        "jsonpath={.items[0].metadata.name}",
    ])?;
    Ok(pod)
}

fn create_extension(kubectl: &Kubectl) -> Result<(), Failure> {
    let key = rcgen::KeyPair::generate()?;
    let names = vec!["hook.shop.svc".to_owned()];
    let certificate = rcgen::CertificateParams::new(names)?.self_signed(&key)?.pem();
    let file = kubectl.folder.join("hook.crt");
    fs::write(&file, &certificate)?;
    let encoded = ["base64", "-w0", &file.display().to_string()].map(str::to_owned);
    let encoded = encoded.iter().map(String::as_str).collect::<Vec<_>>();
    let bundle = output(Command::new(encoded[0]).args(&encoded[1..]), &encoded)?;
    let indented = |text: &str| text.replace('\n', "\n    ");
    kubectl.apply(&format!(
        "apiVersion: v1
kind: Secret
metadata: {{name: hook, namespace: shop}}
stringData:
  server.crt: |
    {}
  server.key: |
    {}
---
apiVersion: v1
kind: Pod
metadata: {{name: hook, namespace: shop, labels: {{app: hook}}}}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{{name: keys, secret: {{secretName: hook}}}}]
  containers:
  - name: hook
    image: {TOOLS}
    command: [/bin/cluster, extension, /keys]
    volumeMounts: [{{name: keys, mountPath: /keys}}]
  - name: page
    image: {TOOLS}
    command: [sh, -c, 'echo a line of a container; echo hello >/tmp/index.html; exec busybox httpd -f -p 8080 -h /tmp']
---
apiVersion: v1
kind: Service
metadata: {{name: hook, namespace: shop}}
spec:
  selector: {{app: hook}}
  ports: [{{name: https, port: 443, targetPort: 8443}}, {{name: http, port: 80, targetPort: 8080}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {{name: v1.{GROUP}}}
spec:
  group: {GROUP}
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 10
  service: {{namespace: shop, name: hook}}
  caBundle: {bundle}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {{name: hook}}
webhooks:
- name: hook.example.com
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: {{service: {{namespace: shop, name: hook}}, caBundle: {bundle}}}
  namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: shop}}}}
  rules: [{{apiGroups: [\"\"], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}}]
",
        indented(certificate.trim_end()),
        indented(key.serialize_pem().trim_end()),
    ))?;
    Ok(())
}

fn delete_extension(kubectl: &Kubectl) -> Result<(), Failure> {
    for object in [
        "validatingwebhookconfiguration/hook",
        &format!("apiservice/v1.{GROUP}"),
    ] {
        kubectl.run(&["delete", object])?;
    }
    kubectl.run(&["delete", "-n", "shop", "secret/hook", "service/hook", "pod/hook"])?;
    Ok(())
}
