//! Runs the built program: manifests, probes and records are its input, rows its output.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there and then")]
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of this")]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// An invocation with all its input, in a folder of its own.
pub struct Invocation {
    folder: PathBuf,
    probes: Vec<String>,
    records: Vec<String>,
    options: Vec<&'static str>,
}

/// Exit status and output of a program that has ended.
#[derive(Clone)]
pub struct ProgramOutput {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Invocation {
    /// A folder that no other test has.
    pub fn of(test: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        fs::create_dir_all(folder.join("manifests")).unwrap();
        Self {
            folder,
            probes: Vec::new(),
            records: Vec::new(),
            options: vec!["-o", "json"],
        }
    }

    /// Writes a file of the manifests.
    pub fn file(self, name: &str, text: &str) -> Self {
        let path = self.folder.join("manifests").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Writes a file of the manifests under a name of no importance.
    pub fn manifest(self, text: &str) -> Self {
        let number = fs::read_dir(self.folder.join("manifests")).unwrap().count();
        self.file(&format!("m{number}.yaml"), text)
    }

    pub fn probe(mut self, probe: &str) -> Self {
        self.probes.push(probe.to_owned());
        self
    }

    /// A probe over TCP; the destination is JSON.
    pub fn tcp(self, from: &str, to: &str, port: u16) -> Self {
        let id = self.probes.len();
        self.probe(&format!(
            r#"{{"id":"{id}","from":{},"to":{},"protocol":"TCP","port":{port}}}"#,
            end(from),
            end(to)
        ))
    }

    pub fn record(self, pod: &str, name: &str, address: &str) -> Self {
        self.record_for(pod, name, address, 30)
    }

    /// A record of so many seconds.
    pub fn record_for(mut self, pod: &str, name: &str, address: &str, ttl: u64) -> Self {
        self.records.push(format!(
            r#"{{"pod":"{pod}","name":"{name}","address":"{address}","ttl":{ttl}}}"#
        ));
        self
    }

    pub fn option(mut self, option: &'static str) -> Self {
        self.options.push(option);
        self
    }

    pub fn in_a_table(mut self) -> Self {
        self.options = vec!["-o", "table"];
        self
    }

    pub fn folder(&self) -> &PathBuf {
        &self.folder
    }

    /// The explanations of the probes.
    pub fn explanations(self) -> Vec<Value> {
        self.run("explain").rows()
    }

    /// Runs the program with probes from its standard input.
    pub fn answer(self) -> ProgramOutput {
        self.run("verdict")
    }

    fn run(self, subcommand: &str) -> ProgramOutput {
        let records = self.folder.join("records.jsonl");
        fs::write(&records, self.records.join("\n")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_egret"));
        command
            .arg(subcommand)
            .arg("--manifests")
            .arg(self.folder.join("manifests"));
        command
            .args(["--probes", "-", "--records"])
            .arg(&records)
            .args(&self.options);
        run(command, &self.probes.join("\n"))
    }

    /// The rows of an answer in which every probe has a verdict.
    pub fn rows(self) -> Vec<Value> {
        let answered = self.answer();
        assert_eq!(answered.status, Some(0), "{}{}", answered.stdout, answered.stderr);
        answered.rows()
    }

    /// Of each row verdict and tiers: `deny np none`.
    pub fn words(self) -> Vec<String> {
        self.rows().iter().map(words).collect()
    }
}

impl ProgramOutput {
    pub fn rows(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// Verdict, egress tier and ingress tier of a row, or `error`.
pub fn words(row: &Value) -> String {
    let tier = |side: &str| row[side]["tier"].as_str().unwrap_or("-").to_owned();
    format!(
        "{} {} {}",
        row["verdict"].as_str().unwrap(),
        tier("egress"),
        tier("ingress")
    )
}

/// The codes of a row's diagnostics.
pub fn codes(row: &Value) -> Vec<&str> {
    row["diagnostics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|note| note["code"].as_str().unwrap())
        .collect()
}

/// Whether the steps of a side of an explanation lead to the rule that it names: the one that matches in the one
/// tier that decides. Of ClusterEgressFirewalls with one priority several may match.
pub fn leads_to_its_end(side: &Value) -> Result<(), String> {
    let tiers = side["tiers"].as_array().unwrap();
    let deciding: Vec<&Value> = tiers.iter().filter(|tier| tier["outcome"] == "decides").collect();
    if !["cef", "admin", "np", "baseline"].contains(&side["tier"].as_str().unwrap()) {
        let is_exempt = side["tier"] == "exempt";
        return if deciding.is_empty() || is_exempt {
            Ok(())
        } else {
            Err(format!("{deciding:?}"))
        };
    }
    let [deciding] = deciding.as_slice() else {
        return Err(format!("{} tiers decide", deciding.len()));
    };
    let matching = deciding["policies"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|policy| {
            policy["rules"]
                .as_array()
                .unwrap()
                .iter()
                .map(move |rule| (policy, rule))
        })
        .filter(|(_, rule)| rule["result"] == "match")
        .map(|(policy, rule)| (policy["policy"].clone(), rule["rule"].clone()))
        .collect::<Vec<_>>();
    let expected = match (&side["policy"], &side["rule"]) {
        (Value::Null, _) | (_, Value::Null) => Vec::new(),
        (policy, rule) => vec![(policy.clone(), rule.clone())],
    };
    let is_led = matching == expected || (side["tier"] == "cef" && matching.contains(&expected[0]));
    if deciding["tier"] == side["tier"] && is_led {
        Ok(())
    } else {
        Err(format!("{matching:?} instead of {expected:?}"))
    }
}

/// `{…}` is JSON, an address is an `ip`, everything else a pod.
pub fn end(text: &str) -> String {
    if text.starts_with('{') {
        text.to_owned()
    } else if text.parse::<std::net::IpAddr>().is_ok() {
        format!(r#"{{"ip":"{text}"}}"#)
    } else {
        format!("\"{text}\"")
    }
}

/// Runs a command to its end, with a text at its standard input.
pub fn run(mut command: Command, input: &str) -> ProgramOutput {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // What ends before it has read everything closes the pipe: its status says why.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().unwrap();
    writer.join().unwrap();
    ProgramOutput {
        status: status.code(),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

/// A running pod.
pub fn pod(key: &str, labels: &str, addresses: &[&str]) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    let ips: Vec<String> = addresses
        .iter()
        .map(|address| format!("{{ip: \"{address}\"}}"))
        .collect();
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}\n\
         spec: {{nodeName: n1, containers: []}}\nstatus: {{phase: Running, podIPs: [{}]}}\n",
        ips.join(", ")
    )
}

/// A NetworkPolicy with a spec in flow style.
pub fn network_policy(key: &str, spec: &str) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"
    )
}

/// A ClusterNetworkPolicy for all pods, with its rules in flow style.
pub fn cluster_policy(name: &str, tier: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: {name}}}\n\
         spec: {{tier: {tier}, priority: 10, subject: {{namespaces: {{}}}}, {rules}}}\n"
    )
}
