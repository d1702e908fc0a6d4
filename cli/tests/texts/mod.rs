//! Rows of the texts: an id, the policies, one connection, and what becomes of it.
//!
//! What each id says is in `docs/conformance.md`. The rows are asked of the built program, as people would.

#![allow(clippy::unwrap_used, reason = "a table that cannot be read fails")]
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of this")]

use serde_json::Value;

use crate::invocation::{Invocation, codes, words};

mod cluster;

pub use cluster::CLUSTER;

/// An address outside of the cluster.
pub const WORLD: &str = "203.0.113.1";
/// Another one, of IPv6.
pub const WORLD_6: &str = "2001:db8::1";

/// Source, destination, `TCP/80` or `ICMP` (behind it `IPv6` or `at 31`, if need be), and what is expected:
/// verdict, tier of the egress, tier of the ingress, codes of diagnostics, as far as they are written; `!` before a
/// code says that it is not there.
pub type Line = (&'static str, &'static str, &'static str, &'static str);

/// Rows over one cluster.
pub struct Table {
    name: &'static str,
    cluster: String,
    records: Vec<(String, String, String, u64)>,
    asked: usize,
    wrong: Vec<String>,
}

impl Table {
    /// A table that no other test has.
    pub fn of(name: &'static str) -> Self {
        Self::over(name, CLUSTER)
    }

    /// The same over a cluster of its own.
    pub fn over(name: &'static str, cluster: &str) -> Self {
        Self {
            name,
            cluster: cluster.to_owned(),
            records: Vec::new(),
            asked: 0,
            wrong: Vec::new(),
        }
    }

    /// What a pod was told, `ttl` seconds long, for all rows that follow.
    pub fn told(mut self, pod: &str, name: &str, address: &str, ttl: u64) -> Self {
        self.records
            .push((pod.to_owned(), name.to_owned(), address.to_owned(), ttl));
        self
    }

    /// What a text (or several, if ids are separated by blanks) comes to with these policies.
    pub fn text(self, ids: &str, policies: &str, lines: &[Line]) -> Self {
        self.read("", ids, policies, lines)
    }

    /// The same, with the policies read as an API server would have stored them.
    pub fn stored(self, ids: &str, policies: &str, lines: &[Line]) -> Self {
        self.read("--as-stored", ids, policies, lines)
    }

    /// Fails with all rows that are not as expected.
    pub fn check(self) {
        assert!(self.asked > 0, "an empty table proves nothing");
        assert!(
            self.wrong.is_empty(),
            "{} of {} rows:\n{}",
            self.wrong.len(),
            self.asked,
            self.wrong.join("\n")
        );
    }

    fn read(mut self, option: &'static str, ids: &str, policies: &str, lines: &[Line]) -> Self {
        let rows = self.ask(option, policies, lines);
        for (line, row) in lines.iter().zip(&rows) {
            self.asked += 1;
            if !is_as_expected(row, line.3) {
                let (from, to, how, expected) = line;
                self.wrong.push(format!(
                    "{ids}: {from} → {to} {how}: expected {expected}, got {}\n{policies}\n{row}",
                    said(row)
                ));
            }
        }
        self
    }

    fn ask(&self, option: &'static str, policies: &str, lines: &[Line]) -> Vec<Value> {
        let mut asked = Invocation::of(&format!("texts_{}", self.name))
            .manifest(&self.cluster)
            .manifest(policies);
        if !option.is_empty() {
            asked = asked.option(option);
        }
        for (pod, name, address, ttl) in &self.records {
            asked = asked.record_for(pod, name, address, *ttl);
        }
        for (index, line) in lines.iter().enumerate() {
            asked = asked.probe(&probe(index, line));
        }
        let answered = asked.answer();
        let rows = answered.rows();
        assert_eq!(rows.len(), lines.len(), "{policies}\n{}", answered.stderr);
        rows
    }
}

fn probe(index: usize, (from, to, how, _): &Line) -> String {
    let mut rest = how.split(' ');
    let (protocol, port) = match rest.next().unwrap().split_once('/') {
        Some((protocol, port)) => (protocol, format!(r#","port":{port}"#)),
        None => (*how, String::new()),
    };
    let protocol = protocol.split(' ').next().unwrap();
    let more = match (rest.next(), rest.next()) {
        (None, _) => String::new(),
        (Some("at"), Some(seconds)) => format!(r#","at":{seconds}"#),
        (Some(family), _) => format!(r#","family":"{family}""#),
    };
    let (from, to) = (crate::invocation::end(from), crate::invocation::end(to));
    format!(r#"{{"id":{index},"from":{from},"to":{to},"protocol":"{protocol}"{port}{more}}}"#)
}

/// The words of the row, and codes, begin with or hold those that are expected.
fn is_as_expected(row: &Value, expected: &str) -> bool {
    let (said, codes) = (words(row), codes(row));
    let mut said = said.split(' ');
    expected.split(' ').all(|word| {
        if let Some(absent) = word.strip_prefix('!') {
            !codes.contains(&absent)
        } else if word.starts_with("EG") || word.contains('-') {
            codes.contains(&word)
        } else {
            said.next() == Some(word)
        }
    })
}

fn said(row: &Value) -> String {
    format!("{} {}", words(row), codes(row).join(" "))
}

/// NetworkPolicy `shop/p` for the pods `app: web`, with what follows its podSelector in flow style.
pub fn np(rest: &str) -> String {
    crate::invocation::network_policy(
        "shop/p",
        &format!("{{podSelector: {{matchLabels: {{app: web}}}}, {rest}}}"),
    )
}

/// The same for egress alone, with these rules.
pub fn np_egress(rules: &str) -> String {
    np(&format!("policyTypes: [Egress], egress: [{rules}]"))
}

/// The same for ingress alone.
pub fn np_ingress(rules: &str) -> String {
    np(&format!("policyTypes: [Ingress], ingress: [{rules}]"))
}

/// A cluster-wide policy with a whole spec in flow style.
pub fn admin(kind: &str, name: &str, spec: &str) -> String {
    let version = if kind == "ClusterNetworkPolicy" {
        "v1alpha2"
    } else {
        "v1alpha1"
    };
    format!(
        "---\napiVersion: policy.networking.k8s.io/{version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"
    )
}

/// ClusterNetworkPolicy `p` of tier Admin for the pods of namespace shop.
pub fn cnp(rest: &str) -> String {
    admin(
        "ClusterNetworkPolicy",
        "p",
        &format!(
            "{{tier: Admin, priority: 10, subject: {{namespaces: {{matchLabels: {{team: a}}}}}}, {rest}}}"
        ),
    )
}

/// The same of tier Baseline, called `b`.
pub fn baseline(rest: &str) -> String {
    cnp(rest)
        .replace("name: p}", "name: b}")
        .replace("tier: Admin", "tier: Baseline")
}

/// AdminNetworkPolicy `p` for the pods of namespace shop.
pub fn anp(rest: &str) -> String {
    admin(
        "AdminNetworkPolicy",
        "p",
        &format!("{{priority: 10, subject: {{namespaces: {{matchLabels: {{team: a}}}}}}, {rest}}}"),
    )
}

/// BaselineAdminNetworkPolicy `default` for the pods of namespace shop.
pub fn banp(rest: &str) -> String {
    admin(
        "BaselineAdminNetworkPolicy",
        "default",
        &format!("{{subject: {{namespaces: {{matchLabels: {{team: a}}}}}}, {rest}}}"),
    )
}

/// ClusterEgressFirewall with these rules, which leaves exposed Services alone.
pub fn firewall(name: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: policy.egret.dev/v1alpha1\nkind: ClusterEgressFirewall\nmetadata: {{name: {name}}}\n\
         spec: {{services: {{exposure: Ignore}}, rules: [{rules}]}}\n"
    )
}
