//! Explanations: they say what `verdict` says, and why.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::path::{Path, PathBuf};
use std::process::Command;

mod invocation;

use invocation::{Invocation, ProgramOutput, cluster_policy, leads_to_its_end, network_policy, pod};

const EXAMPLES: [&str; 2] = ["probes.jsonl", "records.jsonl"];

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/examples/by-name")
        .join(name)
}

fn of_examples(subcommand: &str, format: &str) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args([subcommand, "-o", format, "--manifests"])
        .arg(example(""));
    command.arg("--probes").arg(example(EXAMPLES[0]));
    command.arg("--records").arg(example(EXAMPLES[1]));
    invocation::run(command, "")
}

/// Asks one question of the examples, for people.
fn explain(question: &str) -> ProgramOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command.args(["explain", "--manifests"]).arg(example(""));
    command.arg("--records").arg(example(EXAMPLES[1]));
    command.args(question.split(' '));
    invocation::run(command, "")
}

/// The text with the breaks of lines taken out, and one space between words.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn an_explanation_says_what_the_verdict_says() {
    let verdicts = of_examples("verdict", "json");
    let explained = of_examples("explain", "json");
    assert_eq!((explained.status, explained.stderr.as_str()), (Some(0), ""));
    let (rows, explanations) = (verdicts.rows(), explained.rows());
    assert_eq!(rows.len(), explanations.len());
    for (row, explanation) in rows.iter().zip(&explanations) {
        assert_eq!(row["id"], explanation["id"]);
        assert_eq!(row["verdict"], explanation["verdict"], "{explanation}");
        for way in explanation["connections"].as_array().unwrap() {
            for side in ["egress", "ingress"] {
                assert_eq!(leads_to_its_end(&way[side]), Ok(()), "{}", way[side]);
            }
        }
    }
}

#[test]
fn each_rule_on_the_way_says_why() {
    let answered = explain("--from shop/client --to api.example.test --port 443 --family IPv4");
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    let text = words(&answered.stdout);
    for said in [
        "allow: rule 1 (by-name) of ClusterNetworkPolicy/client-by-name allows it",
        "0 dns: allow no 203.0.113.7 is in none of 169.254.20.10/32, fd00:53::10/128,",
        "203.0.113.7 is api.example.test for this pod until 60 s after it was told",
        "2 everything-else: deny – not asked: a rule before it matches",
        "not reached: an earlier tier has decided",
        "To deny it, one of: - egress of shop/client: take 203.0.113.7 out of rule 1 (by-name)",
    ] {
        let (start, _) = said.split_at(said.len().min(60));
        assert!(text.contains(start), "{start}:\n{}", answered.stdout);
    }
}

#[test]
fn what_differs_is_named_and_so_is_what_would_allow_it() {
    let answered = explain("--from shop/other --to tools/worker --port 8011");
    assert_eq!(answered.status, Some(1), "{}", answered.stderr);
    let text = words(&answered.stdout);
    for said in [
        "deny: isolated by NetworkPolicy/tools/tools, and no rule matches",
        "TCP/8011 is not TCP/8000-8010",
        "add to NetworkPolicy/tools/tools the ingress rule {from: [{namespaceSelector: {matchLabels: \
         {kubernetes.io/metadata.name: shop}}, podSelector: {matchLabels: {app: other}}}], ports: \
         [{protocol: TCP, port: 8011}]}",
        "or let rule 0 of NetworkPolicy/tools/tools have TCP/8011: its peer matches",
    ] {
        assert!(text.contains(said), "{said}:\n{}", answered.stdout);
    }
}

/// The rule that is proposed, added to the policies, has the effect that is promised.
#[test]
fn a_rule_that_is_proposed_does_what_it_should() {
    let question = |asked: &Invocation| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
        command
            .args(["explain", "-o", "json", "--manifests"])
            .arg(asked.folder().join("manifests"));
        command.args(["--from", "shop/client", "--to", "shop/web", "--port", "80"]);
        invocation::run(command, "")
    };
    let ingress = |rules: &str| format!("{{podSelector: {{matchLabels: {{app: web}}}}, ingress: [{rules}]}}");
    let shop = |test: &str| {
        Invocation::of(test)
            .manifest(&pod("shop/client", "app: client, tier: \"1\"", &["10.0.0.1"]))
            .manifest(&pod("shop/web", "app: web", &["10.0.0.2"]))
    };
    let before = shop("proposal_before").file("np.yaml", &network_policy("shop/web", &ingress("")));
    let explained = question(&before);
    assert_eq!(explained.status, Some(1));
    let how = explained.rows()[0]["connections"][0]["change"]["how"][0].to_string();
    let how: String = serde_json::from_str(&how).unwrap();
    let (_, rule) = how.split_once("the ingress rule ").unwrap();
    let after = shop("proposal_after").file("np.yaml", &network_policy("shop/web", &ingress(rule)));
    assert_eq!(question(&after).status, Some(0), "{how}");

    let denied = shop("proposal_admin").manifest(&cluster_policy(
        "deny",
        "Admin",
        "egress: [{action: Deny, to: [{namespaces: {}}]}]",
    ));
    let explained = question(&denied);
    assert_eq!(explained.status, Some(1));
    let how: String =
        serde_json::from_str(&explained.rows()[0]["connections"][0]["change"]["how"][0].to_string()).unwrap();
    let (_, rule) = how.split_once("the rule ").unwrap();
    let rules = format!("egress: [{rule}, {{action: Deny, to: [{{namespaces: {{}}}}]}}]");
    let allowed = shop("proposal_admin_after").manifest(&cluster_policy("deny", "Admin", &rules));
    assert_eq!(question(&allowed).status, Some(0), "{how}");
}

const BY_NAME: &str = "egress: [{name: by-name, action: Accept, to: [{domainNames: [\"*.example.com\"]}], protocols: [{tcp: {destinationPort: {number: 443}}}]}, \
                       {name: rest, action: Deny, to: [{networks: [0.0.0.0/0]}]}]";

#[test]
fn a_record_that_is_used_or_missing_is_told() {
    let probe = |id: &str, to: &str, at: u32| {
        format!(r#"{{"id":"{id}","from":"shop/client","to":{to},"protocol":"TCP","port":443,"at":{at}}}"#)
    };
    let address = r#"{"ip":"203.0.113.7"}"#;
    let client = || {
        Invocation::of("records_told")
            .manifest(&pod("shop/client", "app: client", &["10.0.0.1"]))
            .manifest(&cluster_policy("by-name", "Admin", BY_NAME))
    };
    let reason = |asked: Invocation| {
        let explanation = asked.explanations().remove(0);
        explanation["connections"][0]["egress"]["tiers"][1]["policies"][0]["rules"][0]["peer"]["because"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let told = |name: &str, told: &str, at: u32| {
        reason(
            client()
                .record("shop/client", name, told)
                .probe(&probe("x", address, at)),
        )
    };
    for (found, expected) in [
        (
            told("api.example.com", "203.0.113.7", 0),
            "203.0.113.7 is api.example.com for this pod until 60 s after it was told",
        ),
        (
            told("api.example.com", "203.0.113.7", 61),
            "203.0.113.7 was api.example.com for this pod until 60 s after it was told, and now it is 61 s",
        ),
        (
            told("api.example.com", "203.0.113.8", 0),
            "this pod was told other addresses for api.example.com, not 203.0.113.7",
        ),
        (
            told("example.com", "203.0.113.7", 0),
            "no answer for *.example.com was given to this pod (203.0.113.7 is example.com for it)",
        ),
        (
            reason(client().probe(&probe("x", address, 0))),
            "no answer for *.example.com was given to this pod",
        ),
    ] {
        assert_eq!(found, expected);
    }
    let missing = client()
        .probe(&probe("x", r#"{"name":"api.example.com"}"#, 0))
        .explanations()
        .remove(0);
    assert_eq!(missing["verdict"], "error");
    let change = missing["change"].to_string();
    assert!(
        change.contains("no answer for api.example.com was given"),
        "{change}"
    );
    assert!(
        change.contains("rule 0 (by-name) of ClusterNetworkPolicy/by-name is about this name"),
        "{change}"
    );
}

#[test]
fn whoever_is_not_judged_is_told_so() {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {addresses: [{type: InternalIP, address: 10.9.0.1}]}\n";
    let explanations = Invocation::of("not_judged")
        .manifest(node)
        .manifest(&pod("shop/web", "app: web", &["10.0.0.2"]))
        .manifest(&network_policy(
            "shop/web",
            "{podSelector: {}, policyTypes: [Ingress, Egress]}",
        ))
        .manifest(
            "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
             spec: {selector: {app: web}, ports: [{port: 80}]}\n",
        )
        .tcp(r#"{"node":"n1"}"#, "shop/web", 80)
        .tcp("shop/web", "shop/web", 80)
        .tcp("shop/web", r#"{"service":"shop/web"}"#, 80)
        .tcp("shop/web", r#"{"node":"n1"}"#, 80)
        .tcp("192.0.2.1", "192.0.2.2", 80)
        .explanations();
    let because = |row: usize, side: &str| {
        let side = &explanations[row]["connections"][0][side];
        (
            side["because"].as_str().unwrap().to_owned(),
            side["tiers"].as_array().unwrap().len(),
        )
    };
    for (row, side, said, tiers) in [
        (0, "ingress", "what its own node sends to a pod is not judged", 0),
        (
            0,
            "egress",
            "10.9.0.1 is node n1, and no policy is about nodes",
            0,
        ),
        (1, "egress", "what a pod sends to itself is not judged", 0),
        (
            2,
            "egress",
            "a NetworkPolicy cannot deny what a Service leads back to the pod",
            4,
        ),
        (
            3,
            "egress",
            "a pod may reach its own node where only NetworkPolicies isolate it",
            4,
        ),
        (4, "ingress", "192.0.2.2 is no pod, so no policy is asked", 0),
    ] {
        assert_eq!(because(row, side), (said.to_owned(), tiers), "{row} {side}");
    }
}

fn firewall(name: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: {name}}}\n\
         spec: {{priority: 1, services: {{exposure: Ignore}}, rules: [{rules}]}}\n"
    )
}

#[test]
fn firewalls_of_one_priority_are_all_asked() {
    let explanations = Invocation::of("firewalls")
        .manifest(&pod("shop/web", "app: web", &["10.0.0.2"]))
        .manifest(&firewall(
            "a",
            "{name: let, action: Allow, to: [{networks: [203.0.113.0/24]}]}",
        ))
        .manifest(&firewall(
            "b",
            "{name: stop, action: Deny, to: [{networks: [203.0.113.7/32]}]}",
        ))
        .tcp("shop/web", "203.0.113.7", 80)
        .tcp("shop/web", "203.0.113.8", 80)
        .explanations();
    let cef = |row: usize| &explanations[row]["connections"][0]["egress"]["tiers"][0];
    let results = |row: usize| {
        let rule = |policy: usize| cef(row)["policies"][policy]["rules"][0]["result"].clone();
        [cef(row)["outcome"].clone(), rule(0), rule(1)]
    };
    assert_eq!(results(0), ["decides", "match", "match"]);
    assert_eq!(results(1), ["passes", "match", "no-match"]);
    let how = explanations[0]["connections"][0]["change"]["how"][0].to_string();
    assert!(
        how.contains("put before rule 0 (stop) of ClusterEgressFirewall/b the rule {action: Allow, "),
        "{how}"
    );
}

#[test]
fn every_form_fits_its_reader() {
    let table = of_examples("explain", "table");
    assert_eq!(table.status, Some(0), "{}", table.stderr);
    for line in table.stdout.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    assert!(!table.stdout.contains('\u{1b}'), "no colours where nobody looks");
    let yaml = of_examples("explain", "yaml");
    let documents: Vec<&str> = yaml.stdout.split("---\n").skip(1).collect();
    assert_eq!(documents.len(), of_examples("explain", "json").rows().len());
    assert!(documents[0].starts_with("id: name\n"), "{}", documents[0]);
    assert!(documents[0].contains("because: "), "{}", documents[0]);
}

#[test]
fn shells_learn_the_options_and_the_version_is_told() {
    let egret = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
        command.args(arguments);
        invocation::run(command, "")
    };
    for (shell, start) in [
        ("bash", "_egret()"),
        ("zsh", "#compdef egret"),
        ("fish", "# Print an optspec"),
    ] {
        let script = egret(&["completion", shell]);
        assert_eq!((script.status, script.stderr.as_str()), (Some(0), ""), "{shell}");
        assert!(script.stdout.starts_with(start), "{shell}: {}", script.stdout);
        for word in ["explain", "as-stored"] {
            assert!(script.stdout.contains(word), "{shell} does not know {word}");
        }
    }
    assert_eq!(egret(&["completion", "powershell"]).status, Some(2));
    let version = egret(&["--version"]);
    assert_eq!(version.stdout, format!("egret {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(version.status, Some(0));
}
