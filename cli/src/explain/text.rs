//! Explanations for people, in at most 100 columns.

use comfy_table::{Cell, Color, ColumnConstraint, Table, Width, presets};
use egret_policies::model::Tier;
use egret_policies::rules::OWN_NODE;

use crate::output::{PLAIN, empty_table, header};
use crate::verdict::row::VerdictWord;
use crate::verdict::table::plain;

use super::report::{
    ConnectionPath, Explanation, MatchResult, PathEnd, PolicyStep, RuleOutcome, RuleStep, TierOutcome,
    TierStep, verb,
};

/// Longer names are broken into lines: the reasons need the room.
const RULE_WIDTH: u16 = 44;

/// An explanation as text.
#[must_use]
pub(super) fn render(explanation: &Explanation) -> String {
    let mut text = headline(explanation);
    for way in &explanation.connections {
        text.push_str(&render_way(way));
    }
    if !explanation.change.is_empty() {
        text.push_str(&list("What to add", &explanation.change));
    }
    let notes: Vec<String> = explanation.diagnostics.iter().map(ToString::to_string).collect();
    if !notes.is_empty() {
        text.push_str(&list("What should be known", &notes));
    }
    text
}

fn headline(explanation: &Explanation) -> String {
    let Explanation {
        id,
        from,
        to,
        protocol,
        at,
        verdict,
        reason,
        ..
    } = explanation;
    let moment = if *at > 0.0 {
        format!(", {at} s after the records were learned")
    } else {
        String::new()
    };
    let reason = reason
        .as_ref()
        .map(|reason| format!(" ({reason})"))
        .unwrap_or_default();
    let mut table = paragraphs();
    table.add_row([
        Cell::new(plain(id)),
        Cell::new(format!("{from} → {to}, {protocol}{moment}")),
    ]);
    table.add_row([
        Cell::new(""),
        Cell::new(format!("{}{reason}", verdict.as_str())).fg(color(*verdict)),
    ]);
    format!("{}\n", table.trim_fmt())
}

fn render_way(way: &ConnectionPath) -> String {
    let mut text = String::new();
    for (direction, side, word) in [("egress", &way.egress, "to"), ("ingress", &way.ingress, "from")] {
        let port = side.port.map(|port| format!(" port {port}")).unwrap_or_default();
        let title = format!(
            "{} of {} {word} {}{port}",
            capitalized(direction),
            side.of,
            side.peer
        );
        text.push_str(&render_side(&title, side));
    }
    let change = match way.change.to {
        VerdictWord::Allow => "To allow it",
        VerdictWord::Deny | VerdictWord::Error => "To deny it, one of",
    };
    text.push_str(&list(change, &way.change.how));
    text
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| {
        format!("{}{}", first.to_ascii_uppercase(), letters.as_str())
    })
}

fn render_side(title: &str, side: &PathEnd) -> String {
    let mut table = paragraphs();
    table.add_row([header(title)]);
    let verdict = side.end.verdict;
    table.add_row([Cell::new(format!("{}: {}", verdict.as_str(), side.because)).fg(color(verdict))]);
    let mut text = format!("\n{}\n", table.trim_fmt());
    if !side.tiers.is_empty() {
        text.push_str(&format!("{}\n", tiers(side).trim_fmt()));
    }
    text.push_str(&tried(side));
    text
}

/// What policies in audit would do.
fn tried(side: &PathEnd) -> String {
    if side.audit.is_empty() {
        return String::new();
    }
    let would = match &side.end.would_deny {
        Some(would) => would.words(),
        None => "they would not deny it".to_owned(),
    };
    let mut table = paragraphs();
    table.add_row([format!("in audit, and not asked: {}", side.audit.join(", "))]);
    table.add_row([format!("if they were in force: {would}")]);
    format!("{}\n", table.trim_fmt())
}

fn tiers(side: &PathEnd) -> Table {
    let mut table = empty_table(PLAIN);
    table.set_header(["TIER", "POLICY, RULE", "MATCH", "BECAUSE"].map(header));
    for step in &side.tiers {
        add_tier(&mut table, step);
    }
    if let Some(column) = table.column_mut(1) {
        column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(RULE_WIDTH)));
    }
    table
}

fn add_tier(table: &mut Table, step: &TierStep) {
    let word = step.tier.word();
    match step.outcome {
        TierOutcome::NoPolicy => {
            table.add_row([word, "–", "–", "no policy selects the pod for this direction"]);
        }
        TierOutcome::NotReached => {
            let policies: Vec<&str> = step
                .policies
                .iter()
                .map(|policy| policy.policy.as_str())
                .collect();
            let policies = if policies.is_empty() {
                "–".to_owned()
            } else {
                policies.join("\n")
            };
            table.add_row([word, &policies, "–", "not reached: an earlier tier has decided"]);
        }
        TierOutcome::NoMatch | TierOutcome::Passes | TierOutcome::Decides => {
            for (place, policy) in step.policies.iter().enumerate() {
                add_policy(table, if place == 0 { word } else { "" }, step.tier, policy);
            }
        }
    }
}

fn add_policy(table: &mut Table, word: &str, tier: Tier, policy: &PolicyStep) {
    let priority = policy
        .priority
        .map(|priority| format!(", priority {priority}"))
        .unwrap_or_default();
    let (matches, because) = match (policy.policy.as_str(), tier, policy.rules.is_empty()) {
        (OWN_NODE, _, _) => ("yes", "the pod's own node, which NetworkPolicies exempt"),
        (_, Tier::NetworkPolicy, true) => ("no", "isolates the pod and allows nothing"),
        (_, Tier::ClusterEgressFirewall | Tier::Admin | Tier::Baseline, true) => ("no", "no rules"),
        (_, Tier::NetworkPolicy, false) => ("", "isolates the pod"),
        (_, Tier::ClusterEgressFirewall | Tier::Admin | Tier::Baseline, false) => ("", ""),
    };
    table.add_row([word, &format!("{}{priority}", policy.policy), matches, because]);
    for rule in &policy.rules {
        add_rule(table, rule);
    }
}

fn add_rule(table: &mut Table, rule: &RuleStep) {
    let name = rule
        .name
        .as_ref()
        .map(|name| format!(" {name}"))
        .unwrap_or_default();
    let (word, color) = match rule.result {
        RuleOutcome::Match => ("yes", Some(Color::Green)),
        RuleOutcome::NoMatch => ("no", None),
        RuleOutcome::NotAsked => ("–", None),
    };
    let matches = Cell::new(word);
    table.add_row([
        Cell::new(""),
        Cell::new(format!("  {}{name}: {}", rule.rule, verb(rule.action))),
        match color {
            Some(color) => matches.fg(color),
            None => matches,
        },
        Cell::new(why(rule)),
    ]);
}

/// Of a rule that does not match only what did not.
fn why(rule: &RuleStep) -> String {
    let is_told = |test: &&MatchResult| test.matches == (rule.result == RuleOutcome::Match);
    let reasons: Vec<&str> = [&rule.peer, &rule.port]
        .into_iter()
        .flatten()
        .filter(is_told)
        .map(|test| test.because.as_str())
        .collect();
    match rule.result {
        RuleOutcome::NotAsked => "not asked: a rule before it matches".to_owned(),
        RuleOutcome::Match | RuleOutcome::NoMatch => reasons.join("\n"),
    }
}

fn list(title: &str, items: &[String]) -> String {
    let mut table = paragraphs();
    for item in items {
        table.add_row(["-", item.as_str()]);
    }
    format!("\n {title}:\n{}\n", table.trim_fmt())
}

fn paragraphs() -> Table {
    empty_table(presets::NOTHING)
}

const fn color(word: VerdictWord) -> Color {
    match word {
        VerdictWord::Allow => Color::Green,
        VerdictWord::Deny => Color::Red,
        VerdictWord::Error => Color::Yellow,
    }
}
