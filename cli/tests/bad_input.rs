//! Bad input of every form gets an answer soon: never a panic, never a hang, and where nobody can say what is
//! missing, an error with file, line and what would be accepted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

mod invocation;

use invocation::ProgramOutput;

/// What a debug build gets on a machine that is busy with other tests; a release build needs less than a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that no other test has.
fn folder(test: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bad-{test}"));
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Asks a question about the manifests of some paths, and kills what does not answer.
fn ask(folder: &Path, paths: &[&str]) -> ProgramOutput {
    let (stdout, stderr) = (folder.join("stdout"), folder.join("stderr"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .current_dir(folder)
        .arg("verdict")
        .arg("--manifests")
        .args(paths)
        .args([
            "-o",
            "json",
            "--from",
            "192.0.2.1",
            "--to",
            "10.0.0.1",
            "--port",
            "80",
        ])
        .stdin(Stdio::null())
        .stdout(File::create(&stdout).unwrap())
        .stderr(File::create(&stderr).unwrap());
    let mut child = command.spawn().unwrap();
    let pid = child.id().to_string();
    let (ended, watched) = mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        if watched.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            Command::new("kill").args(["-9", &pid]).status().unwrap();
        }
    });
    let status = child.wait().unwrap();
    drop(ended);
    watcher.join().unwrap();
    ProgramOutput {
        status: status.code(),
        stdout: fs::read_to_string(stdout).unwrap(),
        stderr: fs::read_to_string(stderr).unwrap(),
    }
}

fn ask_of(test: &str, octets: &[u8]) -> ProgramOutput {
    let folder = folder(test);
    fs::write(folder.join("f.yaml"), octets).unwrap();
    ask(&folder, &["f.yaml"])
}

/// Refused, with these words at the beginning of what is said; little is said, and nothing is answered.
#[track_caller]
fn refused(test: &str, octets: &[u8], said: &str) {
    let answered = ask_of(test, octets);
    assert_eq!(answered.status, Some(2), "{test}: {}", answered.stderr);
    let said = format!("egret: {said}");
    assert!(answered.stderr.starts_with(&said), "{test}: {}", answered.stderr);
    assert!(
        answered.stderr.contains("; accepted: "),
        "{test}: {}",
        answered.stderr
    );
    assert_eq!(answered.stdout, "", "{test}");
    is_readable(test, &answered.stderr);
}

/// Ended with this verdict; what is said has these words, and nothing where they are none.
#[track_caller]
fn answered(test: &str, octets: &[u8], verdict: &str, said: &[&str]) {
    let answered = ask_of(test, octets);
    let row = answered.stdout.lines().next().unwrap_or_default();
    assert!(
        row.contains(&format!("\"verdict\":\"{verdict}\"")),
        "{test}: {row}{}",
        answered.stderr
    );
    let all = answered.stdout.clone() + &answered.stderr;
    for words in said {
        assert!(all.contains(words), "{test}: {words}: {all}");
    }
    if said.is_empty() {
        assert_eq!(answered.stderr, "", "{test}");
    }
    is_readable(test, &answered.stderr);
}

/// Not more than somebody would scroll through, and nothing that commands a terminal.
#[track_caller]
fn is_readable(test: &str, said: &str) {
    assert!(
        said.lines().count() <= 110,
        "{test}: {} lines",
        said.lines().count()
    );
    assert!(said.lines().all(|line| line.len() < 1_000), "{test}");
    assert!(
        !said.replace('\n', "").contains(char::is_control),
        "{test}: {said:?}"
    );
}

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nstatus: {podIP: 10.0.0.1, phase: Running}\n";

fn pod_and(more: &str) -> Vec<u8> {
    format!("{POD}{more}").into_bytes()
}

fn policy(spec: &str) -> Vec<u8> {
    pod_and(&format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: p}}\nspec: {spec}\n"
    ))
}

#[test]
fn what_is_no_text_and_no_yaml_is_refused_at_its_place() {
    let image = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice();
    let no_utf8 = [POD.as_bytes(), b"spec: {nodeName: \xff}\n"].concat();
    let utf16: Vec<u8> = "\u{feff}kind: Pod"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    for (test, octets, said) in [
        (
            "image",
            image,
            "f.yaml:1:1: error EG0001: found the octet 0x89, which is not UTF-8",
        ),
        (
            "no-utf8",
            &no_utf8,
            "f.yaml:5:18: error EG0001: found the octet 0xff",
        ),
        (
            "utf16",
            &utf16,
            "f.yaml:1:1: error EG0001: found UTF-16; accepted: text in UTF-8",
        ),
        (
            "sentence",
            b"hello world\n",
            "f.yaml:1:1: error EG0003: found \"hello world\"",
        ),
        ("list", b"[1, 2]\n", "f.yaml:1:1: error EG0003: found a list of 2"),
        (
            "bracket",
            b"a: [1\n",
            "f.yaml:1:4: error EG0001: found unclosed bracket '['",
        ),
        (
            "tab",
            b"metadata:\n\tname: a\n",
            "f.yaml:2:2: error EG0001: found tabs",
        ),
        (
            "nul",
            b"kind: \"a\0b\"\n",
            "f.yaml:1:9: error EG0001: found unexpected character",
        ),
        ("nul-alone", b"\0", "f.yaml:1:1: error EG0001"),
        ("alias", b"a: *b\n", "f.yaml:1:4: error EG0001"),
        (
            "own-alias",
            b"a: &a [*a]\n",
            "f.yaml:1:8: error EG0001: found an alias inside the value",
        ),
        (
            "list-as-name",
            b"? [a, b]\n: c\n",
            "f.yaml:1:3: error EG0001: found a list as the name of a field",
        ),
        (
            "template",
            b"metadata:\n  name: {{ .Values.name }}\n",
            "f.yaml:2:10: error EG0001: found a mapping as the name of a field (a template",
        ),
        (
            "cut-json",
            b"{\"kind\": \"Pod\", \"metadata\": {\"name\"",
            "f.yaml:1:",
        ),
        (
            "json-lines",
            b"{\"kind\": 1}\n{\"kind\": 2}\n",
            "f.yaml:1:1: error EG0003",
        ),
        ("surrogate", b"{\"kind\": \"\\ud800\"}", "f.yaml:1:"),
        ("two-marks", "a: b\n\u{feff}---\n".as_bytes(), "f.yaml:"),
    ] {
        refused(test, octets, said);
    }
}

#[test]
fn what_is_yaml_but_no_object_is_refused_at_its_place() {
    let long = "k".repeat(300);
    for (test, text, said) in [
        ("no-kind", "apiVersion: v1\n".to_owned(), "f.yaml:1:1: error EG0003"),
        ("no-version", "kind: Pod\n".to_owned(), "f.yaml:1:1: error EG0003"),
        ("kind-list", "apiVersion: v1\nkind: [Pod]\n".to_owned(), "f.yaml:2:7: error EG0104: kind"),
        ("no-name", "apiVersion: v1\nkind: Pod\n".to_owned(), "f.yaml:1:1: error EG0004: metadata"),
        ("long-name", format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {long}}}\n"), "f.yaml:3:18: error EG0005: metadata.name"),
        ("long-kind", format!("apiVersion: v1\nkind: {long}\n"), "f.yaml:2:7: error EG0003: kind"),
        ("control", "{\"apiVersion\": \"v1\", \"kind\": \"\\u001b[31mPod\"}".to_owned(), "f.yaml:1:30: error EG0003: kind"),
        ("control-in-name", "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"a\\nb\"}}".to_owned(), "f.yaml:1:58: error EG0005: metadata.name"),
        ("binary-label", "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {a: !!binary aGk=}}\n".to_owned(), "f.yaml:3:42: error EG0005: metadata.labels.a"),
        ("two-specs", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {}\nspec: {}\n".to_owned(), "f.yaml:5:1: error EG0007: spec"),
        ("two-names", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  name: b\n".to_owned(), "f.yaml:5:3: error EG0007: metadata.name"),
        ("two-namespaces", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a, namespace: a, namespace: b}}\n".to_owned(), "f.yaml:4:65: error EG0007: items[0].metadata.namespace"),
        ("unknown-policy", "apiVersion: policy.networking.k8s.io/v1\nkind: TenantPolicy\nmetadata: {name: a}\n".to_owned(), "f.yaml:1:1: error EG0010: kind"),
        ("lower-case-policy", "apiVersion: networking.k8s.io/v1\nkind: networkpolicy\nmetadata: {name: a}\n".to_owned(), "f.yaml:1:1: error EG0010: kind"),
        ("plural", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicies\nmetadata: {name: a}\n".to_owned(), "f.yaml:1:1: error EG0010: kind"),
        ("firewall", "apiVersion: policy.egret.dev/v1alpha1\nkind: EgressFirewall\nmetadata: {name: a}\n".to_owned(), "f.yaml:1:1: error EG0010: kind"),
    ] {
        refused(test, text.as_bytes(), said);
    }
}

/// Each is what a cluster could hold, or what nobody could mean otherwise.
#[test]
fn what_is_only_written_strangely_is_read() {
    let guard = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {podSelector: {}}\n";
    let both = format!("{POD}---\n{guard}");
    for (test, octets) in [
        ("mark", format!("\u{feff}{both}").into_bytes()),
        ("crlf", both.replace('\n', "\r\n").into_bytes()),
        ("comments", format!("# a\n---\n# b\n---\n{both}---\n# c\n...\n").into_bytes()),
        ("directive", format!("%YAML 1.1\n---\n{both}").into_bytes()),
        ("tabs-in-json", pod_and("---\n{\n\t\"apiVersion\": \"networking.k8s.io/v1\",\n\t\"kind\": \"NetworkPolicy\",\n\t\"metadata\": {\"name\": \"p\"},\n\t\"spec\": {\"podSelector\": {}}\n}\n")),
        ("anchors", format!("{POD}---\n{}", guard.replace("{podSelector: {}}", "{podSelector: &all {}, ingress: [{from: [{podSelector: *all}]}]}")).into_bytes()),
        ("merge", format!("{POD}---\n{}", guard.replace("{podSelector: {}}", "{<<: {policyTypes: [Egress]}, policyTypes: [Ingress], podSelector: {}}")).into_bytes()),
        ("list-of-lists", format!("{POD}---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n  items:\n  - apiVersion: networking.k8s.io/v1\n    kind: NetworkPolicyList\n    items: [{{metadata: {{name: p}}, spec: {{podSelector: {{}}}}}}]\n").into_bytes()),
        ("tag", policy("{podSelector: {matchLabels: !!map {}}}")),
    ] {
        answered(test, &octets, "deny", &[]);
    }
    for (test, octets) in [
        ("empty", Vec::new()),
        ("only-comments", b"# a\n# b\n".to_vec()),
        ("only-lines", b"---\n---\n\n---\n".to_vec()),
    ] {
        answered(test, &octets, "allow", &[]);
    }
}

/// Of a policy that is not understood, the rule or the whole is closed, and the line is named.
#[test]
fn what_a_policy_says_badly_is_closed() {
    let from = |rule: &str| format!("{{podSelector: {{}}, ingress: [{rule}]}}");
    let ports = |port: &str| from(&format!("{{ports: [{{port: {port}}}]}}"));
    for (test, spec, said) in [
        ("quoted-port", ports("'80'"), "EG0202"),
        ("octal", ports("080"), "EG0202"),
        ("octal-2", ports("0o120"), "EG0008"),
        ("hexadecimal", ports("0x50"), "EG0008"),
        ("float", ports("80.0"), "EG0202"),
        ("exponent", ports("8e1"), "EG0008"),
        ("underscore", ports("8_0"), "EG0008"),
        ("huge", ports("99999999999999999999"), "EG0202"),
        ("negative", ports("-1"), "EG0201"),
        ("zero", ports("0"), "EG0201"),
        ("too-high", ports("65536"), "EG0201"),
        ("word", ports("yes"), "EG0008"),
        ("list-port", ports("[80]"), "EG0104"),
        ("binary-port", ports("!!binary ODA="), "EG0104"),
        ("own-tag", ports("!port 80"), "EG0104"),
        ("text-tag", ports("! 80"), "EG0202"),
        (
            "quoted-end",
            from("{ports: [{port: 80, endPort: '90'}]}"),
            "EG0203",
        ),
        ("protocol", from("{ports: [{port: 80, protocol: tcp}]}"), "EG0204"),
        ("cidr", from("{from: [{ipBlock: {cidr: 192.0.2/24}}]}"), "EG0301"),
        (
            "except",
            from("{from: [{ipBlock: {cidr: 192.0.2.0/24, except: [0.0.0.0/0]}}]}"),
            "EG0303",
        ),
        (
            "operator",
            from(
                "{from: [{ipBlock: {cidr: 0.0.0.0/0}, podSelector: {matchExpressions: [{key: a, operator: Is}]}}]}",
            ),
            "EG0",
        ),
        ("misspelt", from("{form: []}"), "EG0103"),
        (
            "rule-twice",
            from("{ports: [{port: 80}], from: [], from: [{ipBlock: {cidr: 0.0.0.0/0}}]}"),
            "EG0007",
        ),
        (
            "ingress-twice",
            "{podSelector: {}, ingress: [], ingress: [{}]}".to_owned(),
            "EG0007",
        ),
        (
            "selector-twice",
            "{podSelector: {matchLabels: {a: b}}, podSelector: {}, ingress: [{}]}".to_owned(),
            "EG0007",
        ),
        (
            "selector-narrowed",
            "{podSelector: {}, podSelector: {matchLabels: {a: b}}, ingress: [{}]}".to_owned(),
            "EG0007",
        ),
        (
            "selector-null",
            "{podSelector: {}, podSelector: null, ingress: [{}]}".to_owned(),
            "EG0007",
        ),
        (
            "labels-twice",
            "{podSelector: {matchLabels: {}, matchLabels: {a: b}}, ingress: [{}]}".to_owned(),
            "EG0007",
        ),
        (
            "types-twice",
            "{podSelector: {}, policyTypes: [Ingress], policyTypes: [Egress], ingress: [{}]}".to_owned(),
            "EG0007",
        ),
        (
            "label-twice",
            "{podSelector: {matchLabels: {a: b, a: c}}, ingress: [{}]}".to_owned(),
            "EG0007",
        ),
        (
            "bad-subject",
            "{podSelector: {matchExpressions: [{key: a, operator: Is}]}, ingress: [{}]}".to_owned(),
            "EG0109",
        ),
        (
            "types",
            "{podSelector: {}, policyTypes: [egress]}".to_owned(),
            "EG0116",
        ),
    ] {
        answered(test, &policy(&spec), "deny", &[said]);
    }
    let hosts = "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {hostNetwork: 'true'}\n";
    answered(
        "quoted-truth",
        hosts.as_bytes(),
        "allow",
        &["EG0104", "true or false"],
    );
}

#[test]
fn other_versions_of_known_kinds_are_closed_for_what_they_could_be_about() {
    for (test, version, kind, spec, verdict) in [
        (
            "np-v2",
            "networking.k8s.io/v2",
            "NetworkPolicy",
            "{podSelector: {}, ingress: [{}]}",
            "deny",
        ),
        (
            "np-others",
            "networking.k8s.io/v2",
            "NetworkPolicy",
            "{podSelector: {matchLabels: {b: c}}}",
            "allow",
        ),
        (
            "np-unread",
            "networking.k8s.io/v2",
            "NetworkPolicy",
            "{selector: {b: c}}",
            "deny",
        ),
        (
            "np-old",
            "extensions/v1beta2",
            "NetworkPolicy",
            "{podSelector: {}, ingress: [{}]}",
            "deny",
        ),
        (
            "cnp-beta",
            "policy.networking.k8s.io/v1beta1",
            "ClusterNetworkPolicy",
            "{tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {}}]}]}",
            "deny",
        ),
        (
            "anp-beta",
            "policy.networking.k8s.io/v1beta1",
            "AdminNetworkPolicy",
            "{priority: 1, subject: {namespaces: {}}, ingress: [{action: Allow, from: [{namespaces: {}}]}]}",
            "deny",
        ),
        (
            "banp-v1",
            "policy.networking.k8s.io/v1",
            "BaselineAdminNetworkPolicy",
            "{subject: {namespaces: {}}, ingress: [{action: Allow}]}",
            "deny",
        ),
        (
            "cnp-unread",
            "policy.networking.k8s.io/v1beta1",
            "ClusterNetworkPolicy",
            "{who: everybody}",
            "deny",
        ),
        (
            "no-spec",
            "policy.networking.k8s.io/v1beta1",
            "ClusterNetworkPolicy",
            "null",
            "deny",
        ),
    ] {
        let octets = pod_and(&format!(
            "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: default}}\nspec: {spec}\n"
        ));
        let said = format!("{kind} of \\\"{version}\\\"");
        let said = if verdict == "deny" {
            ["EG0102", &said]
        } else {
            ["EG0102", version]
        };
        answered(test, &octets, verdict, &said);
    }
    // It is about what pods send to what is external.
    let folder = folder("cef-beta");
    let text = format!(
        "{POD}---\napiVersion: policy.egret.dev/v1beta1\nkind: ClusterEgressFirewall\nmetadata: {{name: f}}\n"
    );
    fs::write(folder.join("f.yaml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
    command
        .args([
            "verdict",
            "-o",
            "json",
            "--from",
            "default/a",
            "--to",
            "192.0.2.1",
            "--port",
            "80",
            "--manifests",
        ])
        .arg(folder.join("f.yaml"));
    let answered = invocation::run(command, "");
    assert_eq!(answered.status, Some(1), "{}{}", answered.stdout, answered.stderr);
    assert!(answered.stdout.contains("EG0102"), "{}", answered.stdout);
}

#[test]
fn one_object_twice_is_refused_wherever_the_second_is() {
    let again = format!("{POD}---\n{POD}");
    refused(
        "twice",
        again.as_bytes(),
        "f.yaml:6:1: error EG0006: metadata.name: found Pod/default/a again, first at line 1, column 1",
    );
    let folder = folder("twice-in-files");
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n";
    fs::write(folder.join("1.yaml"), format!("{POD}---\n{deployment}")).unwrap();
    fs::write(folder.join("2.yaml"), format!("{deployment}---\n{POD}")).unwrap();
    let answered = ask(&folder, &["1.yaml", "2.yaml"]);
    assert_eq!(answered.status, Some(2), "{}", answered.stderr);
    let lines: Vec<&str> = answered.stderr.lines().collect();
    assert_eq!(
        lines,
        [
            "egret: 2.yaml:1:1: error EG0006: metadata.name: found Deployment/default/d again, first in 1.yaml; accepted: each object once",
            "2.yaml:5:1: error EG0006: metadata.name: found Pod/default/a again, first in 1.yaml; accepted: each object once",
        ]
    );
}

#[test]
fn every_broken_document_is_named_and_the_others_are_looked_at() {
    let text = format!("{POD}---\na: [1\n---\n- hello\n---\n{POD}---\nb: '\n");
    let answered = ask_of("broken-between", text.as_bytes());
    let places: Vec<_> = answered
        .stderr
        .lines()
        .map(|line| line.trim_start_matches("egret: ").split(' ').next().unwrap())
        .collect();
    assert_eq!(
        places,
        ["f.yaml:6:4:", "f.yaml:8:1:", "f.yaml:10:1:", "f.yaml:16:1:"],
        "{}",
        answered.stderr
    );
}

#[test]
fn kinds_that_do_not_matter_are_skipped_in_a_line_each() {
    let mut text = String::new();
    for number in 0..200 {
        text.push_str(&format!("---\napiVersion: x.y/v1\nkind: K{:02}\n", number % 60));
    }
    let answered = ask_of("kinds", text.as_bytes());
    assert_eq!(answered.status, Some(0), "{}", answered.stderr);
    let lines: Vec<&str> = answered.stderr.lines().collect();
    assert_eq!(lines.len(), 51, "{}", answered.stderr);
    assert_eq!(lines[0], "skipped 4 of kind x.y/v1 K00: no policy depends on it");
    assert_eq!(
        lines[50],
        "skipped 30 of 10 more kinds: no policy depends on them"
    );
    // Other products' policies are a warning each: they are not judged by.
    let other = pod_and("---\napiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: c}\n");
    self::answered(
        "foreign",
        &other,
        "allow",
        &[
            "f.yaml:6:1: warning EG0009",
            "skipped 1 of kind cilium.io/v2 CiliumNetworkPolicy",
        ],
    );
}

fn bomb(first: &str, repeat: impl Fn(&str) -> String) -> Vec<u8> {
    let mut text = format!("a0: &a0 {first}\n");
    for level in 1..30 {
        let alias = format!("*a{}", level - 1);
        text.push_str(&format!("a{level}: &a{level} {}\n", repeat(&alias)));
    }
    text.into_bytes()
}

#[test]
fn what_grows_while_it_is_read_is_refused() {
    let ten = |of: &str| [of; 10].join(", ");
    let lists = bomb("[x]", |alias| format!("[{}]", ten(alias)));
    let fields = bomb("{x: y}", |alias| {
        let fields: Vec<String> = (0..10).map(|number| format!("k{number}: {alias}")).collect();
        format!("{{{}}}", fields.join(", "))
    });
    let merges = bomb("{x: y}", |alias| format!("{{<<: [{}]}}", ten(alias)));
    let text = format!(
        "a: &x {}\nb: [{}]\n",
        "y".repeat(1 << 20),
        vec!["*x"; 50_000].join(", ")
    );
    for (test, octets) in [
        ("bomb", lists),
        ("bomb-of-fields", fields),
        ("bomb-of-merges", merges),
        ("bomb-of-text", text.into_bytes()),
    ] {
        let answered = ask_of(test, &octets);
        assert_eq!(answered.status, Some(2), "{test}: {}", answered.stderr);
        assert!(
            answered
                .stderr
                .contains("error EG0002: found anchors and aliases that stand for more than "),
            "{test}: {}",
            answered.stderr
        );
    }
}

#[test]
fn what_is_deep_is_refused() {
    let indented: String = (0..1_000)
        .map(|depth| format!("{}a:\n", " ".repeat(depth)))
        .collect();
    let list = "{apiVersion: v1, kind: List, items: [".repeat(10_000);
    let nested = format!("{POD}spec: {}{}\n", "[".repeat(10_000), "]".repeat(10_000));
    for (test, text) in [
        ("lists", "[".repeat(10_000)),
        ("mappings", "{a: ".repeat(10_000)),
        ("json", "{\"a\":".repeat(10_000) + "1" + &"}".repeat(10_000)),
        ("dashes", "- ".repeat(10_000)),
        ("questions", "? ".repeat(10_000)),
        ("indented", indented),
        ("lists-of-lists", list),
        ("in-a-pod", nested),
    ] {
        let answered = ask_of(test, text.as_bytes());
        assert_eq!(answered.status, Some(2), "{test}: {}", answered.stderr);
        assert!(
            answered
                .stderr
                .contains(": error EG0001: found more than 255 levels of collections"),
            "{test}: {}",
            answered.stderr
        );
    }
}

#[test]
fn what_is_large_is_answered_or_refused() {
    let huge = "k".repeat(10 << 20);
    let names = format!("{POD}spec: {{{huge}: 1}}\n");
    let quoted = format!("{POD}\"{huge}\": 1\n");
    let text = format!("{POD}spec: {{nodeName: \"{huge}\"}}\n");
    let name = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {huge}}}\n");
    let policies = "---\napiVersion: x.y/v1\nkind: NetworkPolicy\nmetadata: {name: a}\n".repeat(3_000);
    let same = format!("---\n{POD}").repeat(3_000);
    let errors = "---\nhello\n".repeat(3_000);
    let broken = "---\n[\n".repeat(3_000);
    for (test, text, said) in [
        ("huge-name-of-field", names, "f.yaml:5:"),
        ("huge-quoted-name-of-field", quoted, "f.yaml:5:1: error EG0001"),
        (
            "huge-name",
            name,
            "f.yaml:3:18: error EG0005: metadata.name: found \"kkk",
        ),
        ("many-the-same", same, "f.yaml:7:1: error EG0006"),
        ("many-errors", errors, "f.yaml:2:1: error EG0003"),
        ("many-broken", broken, "f.yaml:2:1: error EG0001"),
        (
            "many-documents",
            "---\n".repeat(100_001) + "---\n",
            "f.yaml:100001:1: error EG0002",
        ),
        (
            "many-values",
            format!("a: [{}]", "1,".repeat(1_000_001)),
            "f.yaml:1:1999999: error EG0002: found more than 1000000 names and values",
        ),
    ] {
        refused(test, text.as_bytes(), said);
    }
    answered("huge-text", text.as_bytes(), "allow", &[]);
    let answered = ask_of("many-foreign-policies", policies.as_bytes());
    assert_eq!(answered.status, Some(0));
    assert!(
        answered.stderr.contains("2900 more problems from here on"),
        "{}",
        answered.stderr
    );
    is_readable("many-foreign-policies", &answered.stderr);
}

/// Paths of a folder that was prepared, what it ends with, what is said.
#[test]
fn paths_that_are_no_files_are_named_or_left_alone() {
    let folder = folder("paths");
    let at = |name: &str| folder.join(name);
    for name in ["in/deep", "empty", "loop", "pipes", "dangling", "knot", "good"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    fs::write(at("good/pod.yaml"), POD).unwrap();
    fs::write(at("notes.txt"), "hello").unwrap();
    symlink("..", at("loop/up.yaml")).unwrap();
    fs::write(at("loop/pod.yaml"), POD).unwrap();
    symlink("nowhere", at("dangling/f.yaml")).unwrap();
    symlink("f.yaml", at("knot/f.yaml")).unwrap();
    let pipe = at("pipes/f.yaml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::create_dir(at("in/deep/folder.yaml")).unwrap();
    for (paths, status, said) in [
        (&["empty"][..], 0, ""),
        (&["in"], 0, ""),
        (&["pipes", "good"], 0, ""),
        (&["good", "good/pod.yaml", "good/../good"], 0, ""),
        (
            &["notes.txt"],
            0,
            "notes.txt: ignored, its name ends in none of .yaml, .yml, .json",
        ),
        (&["/dev/null"], 0, ""),
        (
            &["/dev/zero"],
            2,
            "egret: /dev/zero:1:1: error EG0002: found more than 67108864 octets; accepted: several smaller files",
        ),
        (&["dangling"], 2, "egret: dangling/f.yaml: No such file"),
        (
            &["knot"],
            2,
            "egret: knot/f.yaml: Too many levels of symbolic links",
        ),
        (
            &["knot/f.yaml"],
            2,
            "egret: knot/f.yaml: Too many levels of symbolic links",
        ),
        (&["nowhere"], 2, "egret: nowhere: No such file"),
        (&["good/pod.yaml/x"], 2, "egret: good/pod.yaml/x: Not a directory"),
        (&["/proc/self/mem"], 0, "/proc/self/mem: ignored"),
    ] {
        let answered = ask(&folder, paths);
        assert_eq!(answered.status, Some(status), "{paths:?}: {}", answered.stderr);
        assert!(
            answered.stderr.starts_with(said),
            "{paths:?}: {}",
            answered.stderr
        );
        assert_eq!(
            answered.stderr.is_empty(),
            said.is_empty(),
            "{paths:?}: {}",
            answered.stderr
        );
    }
    // The link leads back up to all of it: each folder is entered once, and what is broken elsewhere is found.
    fs::remove_dir_all(at("dangling")).unwrap();
    fs::remove_dir_all(at("knot")).unwrap();
    let answered = ask(&folder, &["loop"]);
    assert_eq!(answered.status, Some(2), "{}", answered.stderr);
    assert!(
        answered.stderr.contains("found Pod/default/a again"),
        "{}",
        answered.stderr
    );
}

#[test]
fn a_folder_with_very_many_files_is_read() {
    let folder = folder("many-files");
    fs::create_dir(folder.join("all")).unwrap();
    for number in 0..5_000 {
        fs::write(folder.join(format!("all/{number}.txt")), "").unwrap();
        fs::write(folder.join(format!("all/{number}.yaml")), "# nothing\n").unwrap();
    }
    let answered = ask(&folder, &["all"]);
    assert_eq!((answered.status, answered.stderr.as_str()), (Some(0), ""));
}
