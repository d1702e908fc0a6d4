//! Finds all links of the node that lead into a pod, from one of them.

use std::net::IpAddr;

use egret_kernel::bridges::Bridges;
use egret_kernel::iptables::InterfaceName;
use egret_kernel::links::{Attachment, Interface};

use super::veth::VethTopology;
use super::{Location, Node};

impl Node {
    /// Adds the pod's other links, and the port by which it is on a bridge.
    pub(super) fn add_other_links(
        &mut self,
        found: Vec<Location>,
        addresses: &[IpAddr],
    ) -> Result<Vec<Location>, String> {
        if found.is_empty() {
            return Ok(found);
        }
        let mut veths = match self.veths.take() {
            Some(veths) => veths,
            None => VethTopology::read(&mut self.links).map_err(|error| error.to_string())?,
        };
        let pod_links = pod_links(&mut veths, found, addresses);
        self.veths = Some(veths);
        pod_links
    }
}

fn pod_links(
    veths: &mut VethTopology,
    found: Vec<Location>,
    addresses: &[IpAddr],
) -> Result<Vec<Location>, String> {
    let mut all = Vec::new();
    for location in found {
        let own = veths.named(location.interface.as_str()).map(|own| own.index);
        let sees_ports = location.is_bridge && calls_iptables(own)?;
        let number = match veths.namespace(location.interface.as_str(), addresses) {
            // Some pod uses an address that is not its own, and it is unknown which.
            Err(reason) if sees_ports => return Err(reason),
            Err(_) => None,
            Ok(number) => number,
        };
        let pod_links: Vec<&Interface> = number
            .into_iter()
            .flat_map(|number| veths.ends_of(number))
            .collect();
        let plugged = pod_links
            .iter()
            .find(|end| location.is_bridge && end.master == own);
        let port = plugged.filter(|_| sees_ports).and_then(|port| name(port));
        let cable = location
            .cable
            .or_else(|| plugged.and_then(|port| Attachment::to_cable(port)));
        let others = pod_links
            .iter()
            .filter(|end| Some(end.index) != own && end.master.is_none())
            .filter_map(|end| {
                Some(Location {
                    cable: Attachment::to_cable(end),
                    ..Location::own(name(end)?)
                })
            });
        all.extend(others);
        all.push(Location {
            port,
            cable,
            ..location
        });
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// None for a name that cannot stand in a rule; the link is then reported as not judged.
fn name(link: &Interface) -> Option<InterfaceName> {
    InterfaceName::new(link.name.clone()).ok()
}

/// Whether the bridge calls iptables in both families. With one family alone, rules that match the port would miss the
/// other.
fn calls_iptables(bridge: Option<u32>) -> Result<bool, String> {
    let everywhere = Bridges::calls_everywhere();
    let Some(bridge) = bridge.filter(|_| Bridges::can_call()) else {
        return Ok(false);
    };
    let said = |error: egret_kernel::netlink::Error| error.to_string();
    let calls = Bridges::open().map_err(said)?.calls(bridge).map_err(said)?;
    Ok(calls.is_some_and(|own| (own.v4 || everywhere.v4) && (own.v6 || everywhere.v6)))
}
