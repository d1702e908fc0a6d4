//! Bypass detection: finds, on a thread of its own, what leads packets of pods past the node's rules, reports
//! it, and programs rules inside pods where that helps.
//!
//! The engine tells where pods are whenever that may have changed; looking takes many questions to the kernel, and entering
//! a namespace takes programs, which the engine does not wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use egret_kernel::fast_paths::{FastPath, FastPaths, Kind};
use egret_kernel::iptables::InterfaceName;
use egret_kernel::links::{Interface, Links, Tunnel};
use egret_kernel::namespaces;
use egret_shared::pod::PodKey;

use crate::backend::bypass::{Bypass, BypassKind, BypassReport};
use crate::backend::netfilter::model::egress_firewall::EgressFirewall;
use crate::backend::netfilter::model::ipvs;
use crate::backend::netfilter::model::set_contents::Contents;
use crate::backend::netfilter::pod_netns::{self, RuleSettings};
use crate::node::veth::VethTopology;

/// What the detector works on: a copy, so that it shares no lock with the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::backend) struct PodSnapshot {
    pub(in crate::backend) pods: BTreeMap<PodKey, WatchedPod>,
    /// What the sets of all firewalls hold.
    pub(in crate::backend) contents: Contents,
    /// Whether the pods' namespaces are read again even if nothing changed.
    pub(in crate::backend) is_whole: bool,
    /// Bridges whose ports reach each other without iptables.
    pub(in crate::backend) bridges: Vec<Bypass>,
}

/// A pod whose attachment is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend) struct WatchedPod {
    pub(in crate::backend) addresses: Vec<IpAddr>,
    /// On the node's side.
    pub(in crate::backend) interfaces: Vec<InterfaceName>,
    pub(in crate::backend) firewall: Arc<EgressFirewall>,
}

/// The handle of the detector's thread.
#[derive(Debug)]
pub(in crate::backend) struct BypassDetector {
    views: mpsc::Sender<PodSnapshot>,
    seen: Arc<Mutex<BypassReport>>,
}

impl BypassDetector {
    /// Starts the thread, in the caller's network namespace.
    pub(in crate::backend) fn start(writing: RuleSettings) -> std::io::Result<Self> {
        let (views, told) = mpsc::channel();
        let seen = Arc::new(Mutex::new(BypassReport::default()));
        let sight = DetectorThread {
            writing,
            seen: Arc::clone(&seen),
            done: BTreeMap::new(),
            contents: Contents::new(),
        };
        let thread = std::thread::Builder::new().name("bypass".to_owned());
        thread.spawn(move || sight.keep(&told))?;
        Ok(Self { views, seen })
    }

    /// Queues a detection.
    pub(in crate::backend) fn look(&self, view: PodSnapshot) {
        if self.views.send(view).is_err() {
            tracing::error!("the bypass detector has died");
        }
    }

    /// The last report.
    pub(in crate::backend) fn bypass_report(&self) -> BypassReport {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Interfaces by which a pod could have the node forward packets that nobody judges, though encapsulation is denied to pods by port.
fn tunnels(links: &mut Links) -> Result<Vec<Bypass>, String> {
    let interfaces = links.interfaces().map_err(|error| error.to_string())?;
    let hidden = interfaces
        .into_iter()
        .filter(|interface| interface.decapsulates == Tunnel::UdpSomewhere);
    let gap = |interface: Interface| Bypass {
        kind: BypassKind::Tunnel,
        what: format!(
            "the interface {} takes packets out of datagrams to a port that it does not tell: what a pod may send there is judged, what is inside is not",
            interface.name
        ),
    };
    Ok(hidden.map(gap).collect())
}

/// Links change in bursts, and a detection makes hundreds of queries.
const PAUSE: Duration = Duration::from_millis(100);

/// The state of the thread.
struct DetectorThread {
    writing: RuleSettings,
    seen: Arc<Mutex<BypassReport>>,
    /// What was written into the namespaces of pods, and what the sets there hold.
    done: BTreeMap<PodKey, Enforced>,
    contents: Contents,
}

/// What is programmed in a pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Enforced {
    number: u32,
    interfaces: Vec<InterfaceName>,
    firewall: Arc<EgressFirewall>,
}

impl DetectorThread {
    fn keep(mut self, told: &mpsc::Receiver<PodSnapshot>) {
        while let Ok(mut view) = told.recv() {
            // Only where pods are now counts.
            while let Ok(newer) = told.try_recv() {
                let is_whole = newer.is_whole || view.is_whole;
                view = PodSnapshot { is_whole, ..newer };
            }
            let outlook = self.look(&view).unwrap_or_else(|reason| {
                let what = format!("ways past the rules cannot be looked for: {reason}");
                let kind = BypassKind::Unseen;
                BypassReport {
                    bypasses: BTreeSet::from([Bypass { kind, what }]),
                    pending: BTreeMap::new(),
                }
            });
            self.publish(outlook);
            std::thread::sleep(PAUSE);
        }
    }

    fn publish(&self, outlook: BypassReport) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for gap in outlook.bypasses.difference(&seen.bypasses) {
            tracing::warn!(kind = gap.kind.word(), "{gap}");
        }
        for gap in seen.bypasses.difference(&outlook.bypasses) {
            tracing::info!(kind = gap.kind.word(), "not any more: {gap}");
        }
        *seen = outlook;
    }

    fn look(&mut self, view: &PodSnapshot) -> Result<BypassReport, String> {
        let mut links = Links::open().map_err(|error| error.to_string())?;
        let mut cables = VethTopology::read(&mut links).map_err(|error| error.to_string())?;
        let mut outlook = BypassReport {
            bypasses: BTreeSet::new(),
            pending: BTreeMap::new(),
        };
        let numbers = numbers(&mut cables, view, &mut outlook);
        outlook.bypasses.extend(view.bridges.iter().cloned());
        outlook.bypasses.extend(fast_paths(&cables, view, &numbers)?);
        outlook.bypasses.extend(ipvs_gap());
        outlook.bypasses.extend(tunnels(&mut links)?);
        outlook.bypasses.extend(unjudged_cables(&cables, view, &numbers));
        let bypassing = bypassing(&mut cables, &numbers, &mut outlook);
        self.guard(&mut links, view, &bypassing, &mut outlook);
        Ok(outlook)
    }

    /// Writes rules into the namespaces of pods that need some, and removes them where they are needed no more.
    fn guard(
        &mut self,
        links: &mut Links,
        view: &PodSnapshot,
        bypassing: &BTreeMap<PodKey, BypassingInterfaces>,
        outlook: &mut BypassReport,
    ) {
        let files = namespaces::find(links, bypassing.values().map(|there| there.number).collect());
        let is_new = view.is_whole || self.contents != view.contents;
        let mut done = BTreeMap::new();
        for (pod, there) in bypassing {
            let Some(watched) = view.pods.get(pod) else {
                continue;
            };
            let before = self.done.get(pod);
            if there.interfaces.is_empty() && before.is_none() {
                continue;
            }
            let wanted = there.wanted(watched);
            let outcome = match wanted {
                Ok(wanted) if !is_new && before == Some(&wanted) => Ok(wanted),
                Ok(wanted) => self.enforce(pod, files.get(&there.number), wanted, &view.contents),
                Err(reason) => Err(reason),
            };
            outlook
                .bypasses
                .extend(there.gaps(pod, watched, outcome.as_ref().err()));
            match outcome {
                Ok(wanted) if wanted.interfaces.is_empty() => {}
                Ok(wanted) => drop(done.insert(pod.clone(), wanted)),
                Err(reason) if watched.firewall.is_empty() => {
                    tracing::debug!(%pod, reason, "the pod's own namespace is as it was");
                }
                Err(reason) => drop(outlook.pending.insert(pod.clone(), reason)),
            }
        }
        self.done = done;
        self.contents.clone_from(&view.contents);
    }

    fn enforce(
        &self,
        pod: &PodKey,
        file: Option<&File>,
        wanted: Enforced,
        contents: &Contents,
    ) -> Result<Enforced, String> {
        let file = file.ok_or_else(|| {
            let places = namespaces::SOUGHT_IN;
            format!("its network namespace is not found; it is looked for in {places}")
        })?;
        let differed =
            pod_netns::enforce(file, &wanted.interfaces, &wanted.firewall, contents, self.writing)?;
        if differed > 0 {
            tracing::info!(%pod, differed, "rules in the pod's own namespace were written");
        }
        Ok(wanted)
    }
}

/// Interfaces of a pod that lead past the node.
#[derive(Debug)]
struct BypassingInterfaces {
    number: u32,
    interfaces: Vec<Interface>,
}

impl BypassingInterfaces {
    /// # Errors
    /// An interface whose name cannot stand in a rule.
    fn wanted(&self, watched: &WatchedPod) -> Result<Enforced, String> {
        let named = |interface: &Interface| InterfaceName::new(interface.name.clone());
        let interfaces: Result<Vec<_>, _> = self.interfaces.iter().map(named).collect();
        Ok(Enforced {
            number: self.number,
            interfaces: interfaces.map_err(|error| error.to_string())?,
            firewall: Arc::clone(&watched.firewall),
        })
    }

    fn gaps(&self, pod: &PodKey, watched: &WatchedPod, hindered: Option<&String>) -> Vec<Bypass> {
        let enforced = match hindered {
            _ if watched.firewall.is_empty() => "and no policy is enforced there".to_owned(),
            None => "and ClusterEgressFirewall alone is enforced there, inside the pod".to_owned(),
            Some(reason) => format!("and nothing is enforced there: {reason}"),
        };
        let gap = |interface: &Interface| {
            let (name, kind) = (&interface.name, interface.kind.as_deref().unwrap_or("a card"));
            Bypass {
                kind: BypassKind::Interface,
                what: format!("the interface {name} ({kind}) of pod {pod} leads past the node, {enforced}"),
            }
        };
        self.interfaces.iter().map(gap).collect()
    }
}

/// The numbers of the pods' namespaces, as far as they are known.
fn numbers(
    cables: &mut VethTopology,
    view: &PodSnapshot,
    outlook: &mut BypassReport,
) -> BTreeMap<PodKey, u32> {
    let mut numbers = BTreeMap::new();
    for (pod, watched) in &view.pods {
        for interface in &watched.interfaces {
            match cables.namespace(interface.as_str(), &watched.addresses) {
                Ok(number) => numbers.extend(number.map(|number| (pod.clone(), number))),
                Err(reason) => drop(outlook.bypasses.insert(unseen(pod, &reason))),
            }
        }
    }
    numbers
}

/// Pods with the interfaces that lead past the node, of which there may be none.
fn bypassing(
    cables: &mut VethTopology,
    numbers: &BTreeMap<PodKey, u32>,
    outlook: &mut BypassReport,
) -> BTreeMap<PodKey, BypassingInterfaces> {
    let mut found = BTreeMap::new();
    for (pod, number) in numbers {
        match cables.leading_past_node(*number) {
            Ok(interfaces) => {
                let number = *number;
                found.insert(pod.clone(), BypassingInterfaces { number, interfaces });
            }
            Err(reason) => drop(outlook.bypasses.insert(unseen(pod, &reason))),
        }
    }
    found
}

/// Veths of pods that are ports of a device by which no address of the pod is reached: their packets carry the interface of that
/// device.
fn unjudged_cables(
    cables: &VethTopology,
    view: &PodSnapshot,
    numbers: &BTreeMap<PodKey, u32>,
) -> Vec<Bypass> {
    let mut gaps = Vec::new();
    for (pod, number) in numbers {
        let interfaces = view
            .pods
            .get(pod)
            .into_iter()
            .flat_map(|watched| &watched.interfaces);
        let judged: BTreeSet<u32> = interfaces
            .filter_map(|name| cables.named(name.as_str()))
            .map(|link| link.index)
            .collect();
        let is_judged = |end: &&Interface| {
            judged.contains(&end.index) || end.master.is_some_and(|master| judged.contains(&master))
        };
        gaps.extend(
            cables
                .ends_of(*number)
                .filter(|end| !is_judged(end))
                .map(|end| Bypass {
                    kind: BypassKind::Interface,
                    what: format!(
                        "the link {} to pod {pod} is not judged: it is a port of something else",
                        end.name
                    ),
                }),
        );
    }
    gaps
}

fn unseen(pod: &PodKey, reason: &str) -> Bypass {
    Bypass {
        kind: BypassKind::Unseen,
        what: format!("whether all interfaces of pod {pod} pass the node cannot be found out: {reason}"),
    }
}

/// What is on the links by which pods are reached, the ports of bridges among them, and all flowtables: which packets they
/// take is decided by rules that name no pod.
fn fast_paths(
    cables: &VethTopology,
    view: &PodSnapshot,
    numbers: &BTreeMap<PodKey, u32>,
) -> Result<Vec<Bypass>, String> {
    let said = |error: egret_kernel::netlink::Error| error.to_string();
    let mut paths = FastPaths::open().map_err(said)?;
    let mut found = paths.flowtables().map_err(said)?;
    let named = view.pods.values().flat_map(|pod| &pod.interfaces);
    let named = named.filter_map(|name| cables.named(name.as_str()));
    let behind = numbers.values().flat_map(|number| cables.ends_of(*number));
    let links: BTreeMap<u32, &str> = named
        .chain(behind)
        .map(|link| (link.index, link.name.as_str()))
        .collect();
    for (index, name) in links {
        found.extend(paths.on(index, name).map_err(said)?);
    }
    Ok(found.iter().map(gap).collect())
}

fn gap(path: &FastPath) -> Bypass {
    let (kind, follows) = match path.kind {
        Kind::Flowtable => (
            BypassKind::Flowtable,
            "forwards packets of open connections that no rule sees: what is revoked may go on",
        ),
        Kind::Tc => (BypassKind::Tc, "may lead packets of pods past the rules"),
        Kind::Tcx => (BypassKind::Tcx, "may lead packets of pods past the rules"),
        Kind::Xdp => (BypassKind::Xdp, "may lead packets of pods past the rules"),
    };
    Bypass {
        kind,
        what: format!("{path} {follows}"),
    }
}

/// What the rules do not see with IPVS.
fn ipvs_gap() -> impl Iterator<Item = Bypass> {
    let gap = || Bypass {
        kind: BypassKind::Ipvs,
        what:
            "what IPVS leads to a process of this node is judged by the address and port of the Service alone"
                .to_owned(),
    };
    ipvs::has_ipvs().then(gap).into_iter()
}
