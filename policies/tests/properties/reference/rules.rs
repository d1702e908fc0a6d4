//! One rule: what it does, and whether it matches.

use serde_json::Value;

use super::cluster::{Pod, get};
use super::kinds::{Dialect, only};
use super::{Act, Ask, Broken, PolicyReader, Tier};
use crate::ids::Id;

/// Which of a rule's peers the other end is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found<'c> {
    /// The rule has no list of peers.
    pub(crate) any: bool,
    /// Pods by selectors: that at the address, and those in whose place dnsd is there.
    pub(crate) pods: Vec<&'c Pod>,
    /// A network, a node, the API server.
    pub(crate) places: bool,
    pub(crate) names: bool,
}

impl Found<'_> {
    const fn is_any(&self) -> bool {
        self.any || !self.pods.is_empty() || self.places || self.names
    }
}

impl PolicyReader<'_> {
    /// What the rule does with the connection; none where it does not match.
    pub(super) fn act(
        &self,
        rule: &Value,
        dialect: Dialect,
        tier: Tier,
        is_sound: bool,
        ask: &Ask<'_>,
    ) -> Option<Act> {
        let action = action(rule, dialect);
        let matches = self.matches(rule, dialect, tier, action, ask);
        match (action, matches) {
            (Ok(Act::Allow), Err(Broken)) => None,
            (Ok(Act::Allow), Ok(_)) if !is_sound => None,
            (Ok(Act::Pass), Ok(_)) if !is_sound => Some(Act::Deny),
            (Ok(act), Ok(matches)) => matches.then_some(act),
            (Ok(Act::Deny | Act::Pass) | Err(Broken), _) => {
                let is_denied = self.is_closed(rule, dialect, ask);
                is_denied.then_some(Act::Deny)
            }
        }
    }

    /// Whether a rule that cannot be read denies the connection.
    fn is_closed(&self, rule: &Value, dialect: Dialect, ask: &Ask<'_>) -> bool {
        let has_names = rule.to_string().contains("domainNames");
        let is_dropped = (has_names && ask.is_egress() && self.errs(Id::F6))
            || (has_names && !ask.is_egress() && self.errs(Id::F7));
        if is_dropped {
            return false;
        }
        match dialect {
            Dialect::Firewall => self.is_external(ask) && !self.errs(Id::E9),
            _ => !self.errs(Id::C21),
        }
    }

    fn matches(
        &self,
        rule: &Value,
        dialect: Dialect,
        tier: Tier,
        action: Result<Act, Broken>,
        ask: &Ask<'_>,
    ) -> Result<bool, Broken> {
        let other_end = if ask.is_egress() { "to" } else { "from" };
        let ports_field = match dialect {
            Dialect::Cluster | Dialect::Firewall => "protocols",
            _ => "ports",
        };
        match dialect {
            Dialect::V1 | Dialect::Old => only(rule, &[other_end, ports_field])?,
            _ => {
                only(rule, &["name", "action", other_end, ports_field])?;
                if get(rule, "name").is_some_and(|name| !name.is_string()) {
                    return Err(Broken);
                }
            }
        }
        let is_bare = rule.as_object().is_some_and(serde_json::Map::is_empty);
        let found = self.find(get(rule, other_end), dialect, tier, action, ask)?;
        let ports = get(rule, ports_field);
        let has_ports = self.has_ports(ports, dialect, ask, &found)?;
        if is_bare && dialect == Dialect::Old && self.errs(Id::P11) {
            return Ok(false);
        }
        let is_by_name = found.names && !has_ports && self.errs(Id::F9);
        let is_behind = dialect == Dialect::Firewall && self.is_behind_api_server(rule, ask)?;
        Ok(has_ports || is_by_name || is_behind)
    }

    /// Whether the other end is one of the peers and the port one of the ports.
    fn has_ports(
        &self,
        ports: Option<&Value>,
        dialect: Dialect,
        ask: &Ask<'_>,
        found: &Found<'_>,
    ) -> Result<bool, Broken> {
        let is_found = found.is_any();
        let Some(ports) = ports else {
            return Ok(is_found && self.is_without_ports(dialect, ask));
        };
        let list = ports.as_array().ok_or(Broken)?;
        if list.is_empty() {
            return match dialect {
                Dialect::V1 => Ok(is_found),
                Dialect::Old => Ok(is_found && self.errs(Id::P12)),
                Dialect::Firewall if self.errs(Id::E12) => Ok(is_found),
                _ => Err(Broken),
            };
        }
        let others = self.pods_at(ask);
        let mut has_ports = false;
        for (place, item) in list.iter().enumerate() {
            // All are read, so that one that is broken closes the rule.
            let at = |destination: Option<&Pod>, is_any: bool| {
                let matches = self.port(item, dialect, ask, destination, is_any)?;
                Ok::<bool, Broken>(matches && !(place > 0 && self.errs(Id::K9)))
            };
            if !ask.is_egress() {
                let is_served = at(Some(ask.subject), false)?;
                let by_mistake = found.places && is_named(item) && self.errs(Id::C11);
                has_ports |= is_served && is_found && !by_mistake;
                continue;
            }
            has_ports |= at(None, found.any)? && is_found;
            let pods = if found.any { &others } else { &found.pods };
            for pod in pods {
                has_ports |= at(Some(pod), found.any)?;
            }
        }
        has_ports |= is_found && self.is_in_hull(list, ask);
        Ok(has_ports)
    }

    /// A rule without ports is about everything; where it has a firewall's meaning, also ICMP.
    fn is_without_ports(&self, dialect: Dialect, ask: &Ask<'_>) -> bool {
        let has_port = matches!(ask.protocol, egret_policies::simulator::Protocol::Port(..));
        has_port || dialect != Dialect::Firewall || !self.errs(Id::E7)
    }
}

fn is_named(item: &Value) -> bool {
    get(item, "port").is_some_and(Value::is_string)
}

/// What the rule says it does.
fn action(rule: &Value, dialect: Dialect) -> Result<Act, Broken> {
    let written = get(rule, "action").and_then(Value::as_str);
    match (dialect, written) {
        (Dialect::V1 | Dialect::Old, _) => Ok(Act::Allow),
        (Dialect::Cluster, Some("Accept")) => Ok(Act::Allow),
        (Dialect::Admin | Dialect::Baseline | Dialect::Firewall, Some("Allow")) => Ok(Act::Allow),
        (Dialect::Cluster | Dialect::Admin | Dialect::Baseline | Dialect::Firewall, Some("Deny")) => {
            Ok(Act::Deny)
        }
        (Dialect::Cluster | Dialect::Admin, Some("Pass")) => Ok(Act::Pass),
        _ => Err(Broken),
    }
}
