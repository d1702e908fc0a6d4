//! What the API server may connect to by its network proxy: `verdict`, `explain` and `lint` of APIServerEgressPolicies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::process::Command;

mod invocation;

use invocation::Invocation;
use serde_json::Value;

const CLUSTER: &str = "
apiVersion: v1
kind: Node
metadata: {name: worker}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: hook, namespace: shop}
spec: {clusterIP: 10.96.0.7, selector: {app: web}, ports: [{port: 443, targetPort: 8443}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: worker, containers: [{name: c}]}
status: {phase: Running, podIP: 10.0.0.5, podIPs: [{ip: 10.0.0.5}], conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: of-pods}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]
";

const POLICIES: &str = "
apiVersion: policy.egret.dev/v1alpha1
kind: APIServerEgressPolicy
metadata: {name: control-plane}
spec:
  selections: [cluster]
  rules:
  - {name: kubelets, action: Allow, to: [{nodes: {}}], protocols: [{tcp: {destinationPort: {number: 10250}}}]}
  - {name: hooks, action: Allow, to: [{services: {namespace: shop}}]}
  - {name: api, action: Allow, to: [{domainNames: [api.example.com]}]}
  - {name: watched, action: Audit, to: [{pods: {}}]}
  - {name: rest, action: Deny, to: [{external: {}}]}
";

fn asked(test: &str) -> Invocation {
    let from = r#"{"apiserver":"cluster"}"#;
    Invocation::of(test)
        .manifest(CLUSTER)
        .manifest(POLICIES)
        .record("(api-server)/cluster", "api.example.com", "203.0.113.7")
        .tcp(from, r#"{"node":"worker"}"#, 10250)
        .tcp(from, r#"{"node":"worker"}"#, 22)
        .tcp(from, r#"{"service":"shop/hook"}"#, 443)
        .tcp(from, r#"{"ip":"10.96.0.7"}"#, 443)
        .tcp(from, "shop/web", 8443)
        .tcp(from, r#"{"name":"api.example.com"}"#, 443)
        .tcp(from, r#"{"ip":"203.0.113.7"}"#, 443)
        .tcp(from, r#"{"ip":"2001:db8::1"}"#, 443)
        .tcp(r#"{"apiserver":"etcd"}"#, r#"{"ip":"203.0.113.7"}"#, 2379)
        // Policies about pods are not about the API server, and the other way round.
        .tcp("shop/web", r#"{"node":"worker"}"#, 10250)
}

const VERDICTS: [(&str, &str); 10] = [
    ("allow", "kubelets"),
    ("deny", "rest"),
    ("allow", "hooks"),
    ("allow", "hooks"),
    ("allow", ""),
    ("allow", "api"),
    ("deny", "rest"),
    ("deny", "rest"),
    ("allow", ""),
    ("deny", ""),
];

fn name_of(end: &Value) -> &str {
    end["ruleName"].as_str().unwrap_or_default()
}

#[test]
fn a_verdict_on_the_api_server_is_of_its_own_policies_and_before_services() {
    let output = asked("api_server_verdict").answer();
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    let rows = output.rows();
    let verdicts: Vec<_> = rows
        .iter()
        .map(|row| (row["verdict"].as_str().unwrap(), name_of(&row["egress"])))
        .collect();
    assert_eq!(verdicts, VERDICTS);
    assert_eq!(rows[0]["egress"]["policy"], "APIServerEgressPolicy/control-plane");
    assert_eq!(rows[4]["egress"]["wouldDeny"]["ruleName"], "watched");
    assert_eq!(rows[9]["egress"]["policy"], "ClusterNetworkPolicy/of-pods");
}

#[test]
fn an_explanation_compares_each_rule_with_the_destination() {
    let explanations = asked("api_server_explain").explanations();
    for (explanation, (verdict, rule)) in explanations.iter().zip(VERDICTS) {
        assert_eq!(explanation["verdict"], verdict, "{explanation}");
        let way = &explanation["connections"][0];
        assert_eq!(name_of(&way["egress"]), rule, "{explanation}");
    }
    let rules = |index: usize| {
        let tiers = explanations[index]["connections"][0]["egress"]["tiers"]
            .as_array()
            .unwrap();
        let admin = tiers.iter().find(|tier| tier["tier"] == "admin").unwrap();
        admin["policies"][0]["rules"].as_array().unwrap().clone()
    };
    let service = &rules(2)[1];
    assert_eq!(service["result"], "match");
    assert_eq!(
        service["peer"]["because"].as_str().unwrap_or_default(),
        "10.96.0.7 is service shop/hook",
        "{service}"
    );
}

#[test]
fn a_mistake_and_a_rule_that_is_never_reached_are_found() {
    let policies = POLICIES.replace("action: Deny", "action: Refuse");
    let twice = "  - {name: twice, action: Deny, to: [{services: {namespace: shop}}]}\n";
    let invocation = Invocation::of("api_server_lint")
        .manifest(CLUSTER)
        .manifest(&(policies + twice));
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args(["lint", "-o", "json", "--dns", "10.96.0.10", "--manifests"])
        .arg(invocation.folder().join("manifests"));
    let output = invocation::run(command, "");
    let of_it = |row: &Value| row["object"] == "APIServerEgressPolicy/control-plane";
    let codes: Vec<_> = output
        .rows()
        .into_iter()
        .filter(of_it)
        .map(|row| (row["code"].clone(), row["field"].clone()))
        .collect();
    let expected = [("EG0112", "spec.rules[4].action"), ("EG1002", "spec.rules[5]")];
    let expected = expected.map(|(code, field)| (Value::from(code), Value::from(field)));
    assert_eq!(codes, expected, "{}", output.stdout);
}

const BY_SERVER_NAME: &str = "
apiVersion: policy.egret.dev/v1alpha1
kind: APIServerEgressPolicy
metadata: {name: hooks}
spec:
  rules:
  - {name: by-name, action: Allow, to: [{services: {namespace: shop}}], serverNames: [hook.shop.svc]}
  - {name: rest, action: Deny, to: [{services: {namespace: shop}}]}
";

#[test]
fn a_rule_by_server_name_is_asked_about_its_names_and_hides_no_rule_behind_it() {
    let from = r#"{"apiserver":"cluster"}"#;
    let by_name = |name: &str| {
        format!(
            r#"{{"id":"{name}","from":{from},"to":{{"service":"shop/hook"}},"port":443,"serverName":"{name}"}}"#
        )
    };
    let asked = |test: &str| {
        Invocation::of(test)
            .manifest(CLUSTER)
            .manifest(BY_SERVER_NAME)
            .probe(&by_name("hook.shop.svc"))
            .probe(&by_name("other.shop.svc"))
            .tcp(from, r#"{"service":"shop/hook"}"#, 443)
    };
    let rows = asked("server_name_verdict").answer().rows();
    let verdicts: Vec<_> = rows
        .iter()
        .map(|row| (row["verdict"].as_str().unwrap(), name_of(&row["egress"])))
        .collect();
    assert_eq!(
        verdicts,
        [("allow", "by-name"), ("deny", "rest"), ("deny", "rest")]
    );
    let explanation = &asked("server_name_explain").explanations()[1];
    let rule = &explanation["connections"][0]["egress"]["tiers"][1]["policies"][0]["rules"][0];
    assert_eq!(
        rule["peer"]["because"], "the rule is about other server names",
        "{explanation}"
    );
    let invocation = Invocation::of("server_name_lint")
        .manifest(CLUSTER)
        .manifest(BY_SERVER_NAME);
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args(["lint", "-o", "json", "--dns", "10.96.0.10", "--manifests"])
        .arg(invocation.folder().join("manifests"));
    let output = invocation::run(command, "");
    let of_it = |row: &Value| row["object"] == "APIServerEgressPolicy/hooks";
    assert!(!output.rows().iter().any(of_it), "{}", output.stdout);
}
