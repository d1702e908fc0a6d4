//! Roles and admission: what each service account may do is what its program asks, and no node speaks for another.

use std::{cell::Cell, collections::BTreeSet, fs, path::Path, time::Instant};

use egret_integration::{Daemon, DaemonSpec, node, within, world::ENFORCER_ADMIN};
use serde_json::Value;

use super::{
    CONTROLLER_ADMIN, Cluster, Failure, PATIENCE, STATUS_INTERVAL, TestResult, containers, items, kustomize,
    objects, strings, text,
};

/// Group, resource and verb.
type Requests = BTreeSet<(String, String, String)>;

/// A service account with a role, and the program that asks with it.
const ACCOUNTS: [(&str, &str, Start); 2] = [
    ("egret-system", "egret-enforcer", start_enforcer),
    ("egret-system", "egret-controller", start_controller),
];
type Start = fn(&Cluster, &[Value], &Path) -> Daemon;

#[test]
fn roles_grant_what_is_asked_and_nothing_else() -> TestResult {
    let Some(base) = kustomize("base")? else {
        return Ok(());
    };
    let Some(cluster) = Cluster::start() else {
        return Ok(());
    };
    cluster.apply(&base, &[])?;
    cluster.kubernetes.apply_world(&cluster.world)?;
    cluster.kubernetes.apply_text(&cluster.world, POLICIES)?;
    taint(&cluster, STARTUP_TAINT)?;
    let objects = objects(&base);
    let bound: BTreeSet<(&str, &str)> = objects
        .iter()
        .flat_map(|object| items(&object["subjects"]))
        .map(|subject| (text(&subject["namespace"]), text(&subject["name"])))
        .collect();
    let tested = ACCOUNTS.map(|(namespace, name, _)| (namespace, name));
    assert_eq!(
        bound,
        BTreeSet::from(tested),
        "each account with a role has a line in ACCOUNTS"
    );
    for (namespace, name, start) in ACCOUNTS {
        let granted = granted(&objects, namespace, name);
        assert!(!granted.is_empty());
        let kubeconfig = cluster
            .kubernetes
            .kubeconfig_of(&cluster.world, namespace, name, node::NAME)?;
        let daemon = start(&cluster, &objects, &kubeconfig);
        let begun = Instant::now();
        loop {
            let (used, refused) = asked(&cluster.kubernetes.audit_log()?, namespace, name);
            assert!(
                refused.is_empty(),
                "{name}: asked and not granted: {refused:?}\n{}",
                daemon.log()
            );
            if used == granted {
                break;
            }
            assert!(
                begun.elapsed() < PATIENCE * 3,
                "{name}: granted and not asked: {:?}\n{}",
                granted.difference(&used).collect::<Vec<_>>(),
                daemon.log()
            );
            // A warning that comes again changes its Event.
            for priority in [5, 6] {
                cluster
                    .kubernetes
                    .apply_text(&cluster.world, &second_policy(priority))?;
                std::thread::sleep(STATUS_INTERVAL);
            }
        }
    }
    Ok(())
}

/// All enforcers have one service account, so its role alone lets each write every report.
#[test]
fn an_enforcer_writes_the_reports_of_its_own_node_alone() -> TestResult {
    /// Each kind, and the list that it requires.
    const REPORTS: [(&str, &str); 2] = [
        ("NodeAddressReport", "addresses"),
        ("NodePolicyReport", "realized"),
    ];
    let (Some(base), Some(cluster)) = (kustomize("base")?, Cluster::start()) else {
        return Ok(());
    };
    cluster.apply(&base, &[])?;
    cluster.kubernetes.apply_world(&cluster.world)?;
    let account = ("egret-system", "egret-enforcer");
    let kubeconfig = cluster
        .kubernetes
        .kubeconfig_of(&cluster.world, account.0, account.1, node::NAME)?
        .display()
        .to_string();
    let report = |(kind, content): (&str, &str), of: &str| -> Result<String, Failure> {
        let object = format!(
            "apiVersion: policy.egret.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {of}}}\n{content}: []\n"
        );
        let path = cluster.world.files().join("report.yaml");
        fs::write(&path, object)?;
        let path = path.display().to_string();
        let apply = ["apply", "--server-side", "--kubeconfig", &kubeconfig, "-f", &path];
        let output = cluster.kubernetes.ask(&cluster.world, &apply)?;
        Ok(output.stdout + &output.stderr)
    };
    let refusal = "an enforcer writes the reports of its own node, which its token names";
    // The API server takes up a new admission policy within some seconds.
    within(PATIENCE, "another node's report is refused", || {
        report(REPORTS[0], "node-2").unwrap().contains(refusal)
    });
    let other = report(REPORTS[1], "node-2")?;
    assert!(other.contains(refusal), "{other}");
    for kind in REPORTS {
        let own = report(kind, node::NAME)?;
        assert!(own.contains("serverside-applied"), "{own}");
    }
    Ok(())
}

/// Its role alone lets it write all of a Node.
#[test]
fn the_controller_takes_the_startup_taint_from_a_node_and_changes_nothing_else_of_it() -> TestResult {
    let (Some(base), Some(cluster)) = (kustomize("base")?, Cluster::start()) else {
        return Ok(());
    };
    cluster.apply(&base, &[])?;
    cluster.kubernetes.apply_world(&cluster.world)?;
    taint(&cluster, STARTUP_TAINT)?;
    taint(&cluster, "example.test/other=:NoSchedule")?;
    let account = ("egret-system", "egret-controller");
    let kubeconfig = cluster
        .kubernetes
        .kubeconfig_of(&cluster.world, account.0, account.1, node::NAME)?
        .display()
        .to_string();
    // Not `kubectl patch`, which reads the object first. Each time another manager: one that leaves out what it applied before takes that away.
    let applied = Cell::new(0);
    let apply = |fields: &str| -> Result<String, Failure> {
        applied.set(applied.get() + 1);
        let manager = format!("test-{}", applied.get());
        let path = cluster.world.files().join("node.yaml");
        fs::write(&path, format!("apiVersion: v1\nkind: Node\n{fields}\n"))?;
        let path = path.display().to_string();
        let apply = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager",
            &manager,
            "--kubeconfig",
            &kubeconfig,
            "-f",
            &path,
        ];
        let output = cluster.kubernetes.ask(&cluster.world, &apply)?;
        Ok(output.stdout + &output.stderr)
    };
    let refusal = "changes nothing else of it";
    let metadata = |more: &str| format!("metadata: {{name: {}, {more}}}", node::NAME);
    let spec = |fields: &str| format!("metadata: {{name: {}}}\nspec: {{{fields}}}", node::NAME);
    // The API server takes up a new admission policy within some seconds. A value that it took before then would change nothing.
    within(PATIENCE, "a label is refused", || {
        let label = metadata(&format!("labels: {{a: b{}}}", applied.get()));
        apply(&label).unwrap().contains(refusal)
    });
    let all = cluster.kubernetes.get(
        &cluster.world,
        &["node", node::NAME, "-o", "jsonpath={.spec.taints}"],
    )?;
    let taints: Vec<Value> = serde_json::from_str(&all)?;
    let without = |key: &str| -> String {
        let others: Vec<&Value> = taints.iter().filter(|taint| taint["key"] != *key).collect();
        spec(&format!("taints: {}", serde_json::json!(others)))
    };
    for forbidden in [
        without("example.test/other"),
        spec("unschedulable: true"),
        spec("taints: [{key: a, effect: NoSchedule}]"),
        metadata("annotations: {a: b}"),
        metadata("ownerReferences: [{apiVersion: v1, kind: Node, name: a, uid: a}]"),
    ] {
        let answer = apply(&forbidden)?;
        assert!(answer.contains(refusal), "{forbidden}: {answer}");
    }
    let answer = apply(&without("policy.egret.dev/enforcer-not-ready"))?;
    assert!(answer.contains("serverside-applied"), "{answer}");
    Ok(())
}

const STARTUP_TAINT: &str = "policy.egret.dev/enforcer-not-ready=:NoSchedule";

fn taint(cluster: &Cluster, taint: &str) -> TestResult {
    let arguments = ["taint", "node", node::NAME, taint];
    cluster.kubernetes.kubectl(&cluster.world, &arguments)
}

/// One of each kind that has a status, which the controller writes.
const POLICIES: &str = "
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: one}
spec: {priority: 5, subject: {namespaces: {}}}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec: {subject: {namespaces: {}}}
---
apiVersion: policy.egret.dev/v1alpha1
kind: ClusterEgressFirewall
metadata: {name: one}
spec: {rules: [{name: denied, action: Deny, to: [{networks: [192.0.2.0/24]}]}]}
";

/// Another one of priority 5 is a warning about both.
fn second_policy(priority: u32) -> String {
    format!(
        "apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {{name: two}}
spec: {{priority: {priority}, subject: {{namespaces: {{}}}}}}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {{name: two}}
spec: {{tier: Admin, priority: {priority}, subject: {{namespaces: {{}}}}}}
"
    )
}

/// As its container does, with an account's rights.
fn start_controller(cluster: &Cluster, objects: &[Value], kubeconfig: &Path) -> Daemon {
    let all = containers(objects);
    let container = all
        .iter()
        .find(|container| container["name"] == "controller")
        .unwrap();
    let arguments = strings(&container["args"]);
    assert_eq!(arguments.first(), Some(&"controller"));
    let mut spec = cluster.kubernetes.controller(CONTROLLER_ADMIN);
    *spec.arguments.last_mut().expect("the kubeconfig is last") = kubeconfig.display().to_string();
    cluster.world.launch(spec).unwrap()
}

/// As its container does, with the files of this world and no rules.
fn start_enforcer(cluster: &Cluster, objects: &[Value], kubeconfig: &Path) -> Daemon {
    let all = containers(objects);
    let container = all
        .iter()
        .find(|container| container["name"] == "enforcer")
        .unwrap();
    let link = cluster.world.link().display().to_string();
    let arguments = strings(&container["args"])
        .into_iter()
        .map(|argument| {
            argument
                .replace("$(NODE_NAME)", node::NAME)
                .replace("/run/egret/link.sock", &link)
        })
        .filter(|argument| !argument.starts_with("--admin="));
    let spec = DaemonSpec::enforcer(ENFORCER_ADMIN)
        .with(arguments)
        .with(["--backend=memory", "--state=", "--state-objects="])
        .with([format!("--kubeconfig={}", kubeconfig.display())]);
    // It is not ready while it is refused something, which is said by the audit log.
    cluster.world.launch(spec).unwrap()
}

/// By all roles that are bound to the account.
fn granted(objects: &[Value], namespace: &str, name: &str) -> Requests {
    let is_account = |subject: &Value| subject["namespace"] == namespace && subject["name"] == name;
    let roles: Vec<(&str, &str)> = objects
        .iter()
        .filter(|object| items(&object["subjects"]).iter().any(is_account))
        .map(|binding| {
            (
                text(&binding["roleRef"]["kind"]),
                text(&binding["roleRef"]["name"]),
            )
        })
        .collect();
    let rules = objects
        .iter()
        .filter(|object| roles.contains(&(text(&object["kind"]), text(&object["metadata"]["name"]))))
        .flat_map(|role| items(&role["rules"]));
    let mut granted = Requests::new();
    for rule in rules {
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                for verb in strings(&rule["verbs"]) {
                    assert!(![group, resource, verb].contains(&"*"), "{rule}");
                    granted.insert((group.to_owned(), resource.to_owned(), verb.to_owned()));
                }
            }
        }
    }
    granted
}

/// What the account was allowed, and what not. Paths that everybody may read who is authenticated are not among them.
fn asked(audit_log: &str, namespace: &str, name: &str) -> (Requests, Requests) {
    let user = format!("system:serviceaccount:{namespace}:{name}");
    let (mut used, mut refused) = (Requests::new(), Requests::new());
    // The last line may not be complete yet.
    for event in audit_log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
    {
        let object = &event["objectRef"];
        if event["user"]["username"] != user.as_str() || object.is_null() {
            continue;
        }
        let resource = match text(&object["subresource"]) {
            "" => text(&object["resource"]).to_owned(),
            subresource => format!("{}/{subresource}", text(&object["resource"])),
        };
        let request = (
            text(&object["apiGroup"]).to_owned(),
            resource,
            text(&event["verb"]).to_owned(),
        );
        if event["responseStatus"]["code"] == 403 {
            refused.insert(request);
        } else {
            // An apply that makes the object is judged as both, and logged as one.
            if request.2 == "patch" && event["responseStatus"]["code"] == 201 {
                used.insert((request.0.clone(), request.1.clone(), "create".to_owned()));
            }
            used.insert(request);
        }
    }
    (used, refused)
}
