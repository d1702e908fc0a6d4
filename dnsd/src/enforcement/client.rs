//! Who asks, and who pays. A query is a pod's if the way back to its source address leaves by the interface that it came in
//! by. A query in the name of another is not answered: the answer would go to that other one. Whatever comes by a pod's
//! interface pays as that pod, whatever its source.

use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use egret_kernel::links::{Attachment, Links};
use egret_shared::switch::{self, Switch};
use egret_shared::time::Timestamp;

use crate::hash::HashMap;

/// How long a look-up of a route is believed.
const BELIEVED: Duration = Duration::from_secs(1);
/// How long it is believed by a query that it does not fit: a flood of spoofed queries costs one look-up in this time.
const BELIEVED_UNFIT: Duration = Duration::from_millis(50);
/// Addresses whose routes are remembered; with more, all are looked up anew.
const MAX_REMEMBERED: usize = 16_384;

/// The client of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A pod (or something else behind an interface of its own).
    Attributed(Asker),
    /// Nobody to whom a record could be kept.
    Unattributed(Unattributed),
}

/// Whose a query is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// By its address …
    pub address: IpAddr,
    /// … and by what that is attached to: an address is used again, and who has it next is another. None where that
    /// cannot be told.
    pub attachment: Option<Attachment>,
}

/// Why a query belongs to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unattributed {
    /// It comes from this host.
    Local,
    /// It came in by another interface than the way back leaves by.
    Interface,
    /// There is no way back.
    NoRoute,
    /// The kernel did not say.
    Unknown,
}

impl Unattributed {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Local, Self::Interface, Self::NoRoute, Self::Unknown];

    /// The label of the metric.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Interface => "interface",
            Self::NoRoute => "no_route",
            Self::Unknown => "unknown",
        }
    }
}

/// Who asks, who pays, and whether it is an answer at all that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The client.
    pub client: Client,
    /// From whose share it is taken.
    pub payer: Payer,
    /// Whether the source address is certainly not the sender's: whoever has it must not get the answer.
    pub is_forged: bool,
}

/// Quota key: from whose share of what is limited for each client a query is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Payer {
    interface: Option<u32>,
    /// None where all that comes by the interface is one client's.
    address: Option<IpAddr>,
}

impl Payer {
    /// dnsd itself.
    pub const OWN: Self = Self {
        interface: None,
        address: None,
    };

    /// Who is behind this interface, at this address where several clients are.
    #[must_use]
    pub const fn behind(interface: u32, address: Option<IpAddr>) -> Self {
        Self {
            interface: Some(interface),
            address,
        }
    }

    pub(crate) const fn interface(self) -> Option<u32> {
        self.interface
    }

    pub(crate) const fn address(self) -> Option<IpAddr> {
        self.address
    }

    /// Of what comes by an interface. A source that is not to be found there is nobody's: those who write such share one key.
    fn of(source: IpAddr, interface: Option<u32>, behind: Behind, is_found: bool) -> Self {
        if switch::is_off(Switch::PayByInterface) {
            return source.into();
        }
        let address = match behind {
            Behind::Pod | Behind::Node => None,
            Behind::Pods | Behind::Relay | Behind::Others => Some(source).filter(|_| is_found),
        };
        Self { interface, address }
    }
}

impl From<IpAddr> for Payer {
    fn from(address: IpAddr) -> Self {
        Self {
            interface: None,
            address: Some(address),
        }
    }
}

/// What is behind an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// This node alone: `lo`, and interfaces that lead nowhere (`dummy`, `ifb`).
    Node,
    /// One pod alone: a cable into another namespace.
    Pod,
    /// Pods alone: a bridge all of whose ports are such cables.
    Pods,
    /// A veth both ends of which are in this namespace: another program decides which way packets take, so that the route back
    /// says nothing about who sends (`cilium_host`).
    Relay,
    /// Anybody.
    Others,
}

impl Behind {
    /// Whether who is there can have no addresses but those that are routed there.
    const fn is_pods_own(self) -> bool {
        match self {
            Self::Pod | Self::Pods => true,
            Self::Node | Self::Relay | Self::Others => false,
        }
    }
}

/// The way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is this host's own.
    Local,
    /// It leaves by the interface with this index.
    Leaves(u32),
    /// There is none.
    None,
}

/// What knows the ways: the kernel's routing table, or a test's.
pub trait Routes: Send {
    /// The way to an address.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn way_to(&mut self, address: IpAddr) -> io::Result<Way>;

    /// What an address is attached to that is reached by the interface with this index.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn attachment(&mut self, interface: u32, address: IpAddr) -> io::Result<Option<Attachment>>;

    /// What is behind the interface with this index.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn behind(&mut self, interface: u32) -> io::Result<Behind>;
}

impl Routes for Links {
    fn way_to(&mut self, address: IpAddr) -> io::Result<Way> {
        let route = self.route_to(address).map_err(io::Error::other)?;
        Ok(match route {
            Some(route) if route.is_local => Way::Local,
            Some(route) => Way::Leaves(route.interface),
            None => Way::None,
        })
    }

    fn attachment(&mut self, interface: u32, address: IpAddr) -> io::Result<Option<Attachment>> {
        Self::attachment(self, interface, address).map_err(io::Error::other)
    }

    fn behind(&mut self, interface: u32) -> io::Result<Behind> {
        if interface == LOOPBACK {
            return Ok(Behind::Node);
        }
        let Some(link) = self.interface_by_index(interface).map_err(io::Error::other)? else {
            return Ok(Behind::Others);
        };
        Ok(match link.kind.as_deref() {
            _ if Attachment::to_cable(&link).is_some() => Behind::Pod,
            Some("veth" | "netkit") => Behind::Relay,
            Some("dummy" | "ifb") => Behind::Node,
            Some("bridge") => {
                let all = self.interfaces().map_err(io::Error::other)?;
                let mut ports = all
                    .iter()
                    .filter(|port| port.master == Some(interface))
                    .peekable();
                match ports.peek().is_some() && ports.all(|port| Attachment::to_cable(port).is_some()) {
                    true => Behind::Pods,
                    false => Behind::Others,
                }
            }
            Some(_) | None => Behind::Others,
        })
    }
}

/// `LOOPBACK_IFINDEX`, in every namespace.
const LOOPBACK: u32 = 1;

/// Attributes queries; look-ups are remembered for a second.
pub struct Attribution(
    /// Held for a look at the map; and once a second for each client while the kernel is asked, so that threads that are asked
    /// by one client at once ask about it once.
    Mutex<Known>,
);

struct Known {
    routes: Box<dyn Routes>,
    ways: HashMap<IpAddr, Seen>,
    interfaces: HashMap<u32, (Behind, Timestamp)>,
}

/// What a look-up found.
#[derive(Clone, Copy)]
struct Seen {
    way: Way,
    attachment: Option<Attachment>,
    /// What is behind the interface by which the way leaves.
    behind: Behind,
    at: Timestamp,
}

impl std::fmt::Debug for Attribution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attribution").finish_non_exhaustive()
    }
}

impl Attribution {
    /// Attributes by these routes.
    #[must_use]
    pub fn new(routes: Box<dyn Routes>) -> Self {
        Self(Mutex::new(Known {
            routes,
            ways: HashMap::default(),
            interfaces: HashMap::default(),
        }))
    }

    /// Who sent a query from `source` that came in by `interface`.
    pub fn identify(&self, source: IpAddr, interface: Option<u32>, now: Timestamp) -> Identity {
        // A panic inside leaves a map that is still true.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.identify(source, interface, now) {
            Ok(identity) => identity,
            Err(error) => {
                tracing::debug!(%source, %error, "the route of a client cannot be looked up");
                Identity {
                    client: Client::Unattributed(Unattributed::Unknown),
                    payer: Payer {
                        interface,
                        address: None,
                    },
                    is_forged: false,
                }
            }
        }
    }

    /// What an address is attached to at this moment; none where that cannot be told.
    pub fn attachment(&self, address: IpAddr) -> Option<Attachment> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let way = known.routes.way_to(address);
        known.attachment(address, *way.as_ref().unwrap_or(&Way::None))
    }
}

impl Known {
    fn identify(&mut self, source: IpAddr, interface: Option<u32>, now: Timestamp) -> io::Result<Identity> {
        let seen = self.seen(source, interface, now)?;
        let attributed = Client::Attributed(Asker {
            address: source,
            attachment: seen.attachment,
        });
        let fits = matches!(seen.way, Way::Leaves(way) if Some(way) == interface);
        let behind = match interface {
            _ if fits => seen.behind,
            Some(interface) => self.behind(interface, now)?,
            None => Behind::Others,
        };
        // In IPv6 the kernel says of what this node sends to itself that it came by the interface that has the address
        // asked (`ip6_rcv_core`): so `lo` is not the only one by which it comes.
        let is_local = seen.way == Way::Local && !behind.is_pods_own();
        let client = match seen.way {
            _ if switch::is_off(Switch::AttributeByInterface) => attributed,
            Way::None => Client::Unattributed(Unattributed::NoRoute),
            Way::Local if is_local => Client::Unattributed(Unattributed::Local),
            Way::Leaves(_) if fits => attributed,
            Way::Local | Way::Leaves(_) => Client::Unattributed(Unattributed::Interface),
        };
        Ok(Identity {
            client,
            payer: Payer::of(source, interface, behind, fits || is_local),
            is_forged: client == Client::Unattributed(Unattributed::Interface)
                && is_forged(behind, interface, seen),
        })
    }

    /// What is behind an interface; an index is used again.
    fn behind(&mut self, interface: u32, now: Timestamp) -> io::Result<Behind> {
        if let Some((behind, at)) = self.interfaces.get(&interface)
            && now < at.after(BELIEVED)
        {
            return Ok(*behind);
        }
        let behind = self.routes.behind(interface)?;
        if self.interfaces.len() >= MAX_REMEMBERED {
            self.interfaces.clear();
        }
        self.interfaces.insert(interface, (behind, now));
        Ok(behind)
    }

    /// The way to the source. One that does not fit is looked up again: a pod may have come just now.
    fn seen(&mut self, source: IpAddr, interface: Option<u32>, now: Timestamp) -> io::Result<Seen> {
        if let Some(seen) = self.ways.get(&source) {
            let fits = matches!(seen.way, Way::Leaves(index) if Some(index) == interface);
            let believed = if fits { BELIEVED } else { BELIEVED_UNFIT };
            if now < seen.at.after(believed) {
                return Ok(*seen);
            }
        }
        let way = self.routes.way_to(source)?;
        let attachment = self.attachment(source, way);
        let behind = match way {
            Way::Local => Behind::Node,
            Way::Leaves(interface) => self.behind(interface, now)?,
            Way::None => Behind::Others,
        };
        let seen = Seen {
            way,
            attachment,
            behind,
            at: now,
        };
        if self.ways.len() >= MAX_REMEMBERED {
            self.ways.clear();
        }
        self.ways.insert(source, seen);
        Ok(seen)
    }

    fn attachment(&mut self, address: IpAddr, way: Way) -> Option<Attachment> {
        let Way::Leaves(interface) = way else {
            return None;
        };
        if switch::is_off(Switch::ForgetPredecessor) {
            return Some(Attachment::to(&address));
        }
        match self.routes.attachment(interface, address) {
            Ok(attachment) => attachment,
            Err(error) => {
                tracing::debug!(%address, %error, "what a client is attached to cannot be looked up");
                None
            }
        }
    }
}

/// Whether a source address to which another way leads is certainly not the sender's: where pods of this node are at either
/// end, which have no other way. Between other interfaces routes may well be asymmetric.
const fn is_forged(behind: Behind, interface: Option<u32>, seen: Seen) -> bool {
    match (behind, seen.behind) {
        (Behind::Relay | Behind::Node, _) | (_, Behind::Relay) => false,
        _ => interface.is_some() && (behind.is_pods_own() || seen.behind.is_pods_own()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::sync::Arc;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const BRIDGED: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1));
    const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
    const FARTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2));
    const RELAYED: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1));
    const NODE: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9));
    const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    /// Interfaces.
    const LO: u32 = 1;
    const DUMMY: u32 = 2;
    const UPLINK: u32 = 3;
    const SECOND_UPLINK: u32 = 4;
    const RELAY: u32 = 5;
    const BRIDGE: u32 = 6;
    const POD: u32 = 7;
    const OTHER_POD: u32 = 8;

    struct Table(HashMap<IpAddr, Way>);

    impl Default for Table {
        fn default() -> Self {
            Self(HashMap::from([
                (V4, Way::Leaves(POD)),
                (V6, Way::Leaves(POD)),
                (OTHER, Way::Leaves(OTHER_POD)),
                (BRIDGED, Way::Leaves(BRIDGE)),
                (FAR, Way::Leaves(UPLINK)),
                (FARTHER, Way::Leaves(SECOND_UPLINK)),
                (RELAYED, Way::Leaves(RELAY)),
                (NODE, Way::Local),
            ]))
        }
    }

    impl Routes for Table {
        fn way_to(&mut self, address: IpAddr) -> io::Result<Way> {
            Ok(self.0.get(&address).copied().unwrap_or(Way::None))
        }

        fn attachment(&mut self, interface: u32, _address: IpAddr) -> io::Result<Option<Attachment>> {
            Ok(Some(Attachment::to(&interface)))
        }

        fn behind(&mut self, interface: u32) -> io::Result<Behind> {
            Ok(match interface {
                LO | DUMMY => Behind::Node,
                RELAY => Behind::Relay,
                BRIDGE => Behind::Pods,
                POD | OTHER_POD => Behind::Pod,
                _uplink => Behind::Others,
            })
        }
    }

    fn identify(source: IpAddr, interface: Option<u32>) -> Identity {
        let attribution = Attribution::new(Box::<Table>::default());
        let first = attribution.identify(source, interface, NOW);
        assert_eq!(attribution.identify(source, interface, NOW), first, "remembered");
        first
    }

    fn attributed(address: IpAddr, interface: u32) -> Client {
        Client::Attributed(Asker {
            address,
            attachment: Some(Attachment::to(&interface)),
        })
    }

    #[test]
    fn a_query_is_a_pods_only_by_the_pods_own_interface() {
        for (source, interface, client) in [
            (V4, Some(POD), attributed(V4, POD)),
            (OTHER, Some(POD), Client::Unattributed(Unattributed::Interface)),
            (OTHER, Some(OTHER_POD), attributed(OTHER, OTHER_POD)),
            (V4, None, Client::Unattributed(Unattributed::Interface)),
            (NODE, Some(LO), Client::Unattributed(Unattributed::Local)),
            (NODE, Some(DUMMY), Client::Unattributed(Unattributed::Local)),
            (NODE, Some(POD), Client::Unattributed(Unattributed::Interface)),
            (NODE, Some(BRIDGE), Client::Unattributed(Unattributed::Interface)),
            (NOBODY, Some(POD), Client::Unattributed(Unattributed::NoRoute)),
        ] {
            assert_eq!(
                identify(source, interface).client,
                client,
                "{source} by {interface:?}"
            );
        }
    }

    #[test]
    fn whatever_comes_by_a_pods_interface_pays_as_that_pod() {
        for source in [V4, V6, OTHER, NODE, FAR, NOBODY] {
            assert_eq!(
                identify(source, Some(POD)).payer,
                Payer::behind(POD, None),
                "{source}"
            );
        }
        for (source, interface, payer) in [
            (OTHER, OTHER_POD, Payer::behind(OTHER_POD, None)),
            (NODE, LO, Payer::behind(LO, None)),
            (BRIDGED, BRIDGE, Payer::behind(BRIDGE, Some(BRIDGED))),
            (FAR, UPLINK, Payer::behind(UPLINK, Some(FAR))),
            // Whoever writes addresses that are not behind a common interface has one share with others who do.
            (OTHER, BRIDGE, Payer::behind(BRIDGE, None)),
            (FARTHER, UPLINK, Payer::behind(UPLINK, None)),
            (NOBODY, UPLINK, Payer::behind(UPLINK, None)),
        ] {
            assert_eq!(
                identify(source, Some(interface)).payer,
                payer,
                "{source} by {interface}"
            );
        }
    }

    #[test]
    fn a_source_that_only_another_pod_or_the_node_can_have_is_forged_and_an_asymmetric_route_is_none() {
        for (source, interface, is_forged) in [
            (V4, POD, false),
            (V6, POD, false),
            (BRIDGED, BRIDGE, false),
            (FAR, UPLINK, false),
            (NODE, LO, false),
            (NODE, DUMMY, false),
            (OTHER, POD, true),
            (BRIDGED, POD, true),
            (NODE, POD, true),
            (FAR, POD, true),
            (OTHER, BRIDGE, true),
            (FAR, BRIDGE, true),
            (NODE, BRIDGE, true),
            (OTHER, UPLINK, true),
            (BRIDGED, UPLINK, true),
            // Nothing could be answered.
            (NOBODY, POD, false),
            // Two uplinks.
            (FARTHER, UPLINK, false),
            (FAR, SECOND_UPLINK, false),
            // Another program takes what is for these pods to them.
            (RELAYED, POD, false),
            (V4, RELAY, false),
            // A proxy of this node, in the name of its client.
            (V4, LO, false),
        ] {
            assert_eq!(
                identify(source, Some(interface)).is_forged,
                is_forged,
                "{source} by {interface}"
            );
        }
        assert!(!identify(V4, None).is_forged, "the kernel did not say by which");
    }

    #[test]
    fn an_address_that_moves_to_another_interface_belongs_to_its_new_pod() {
        let table = Arc::<Mutex<Table>>::default();
        let attribution = Attribution::new(Box::new(Shared(Arc::clone(&table))));
        let client = |interface, now| attribution.identify(V4, Some(interface), now).client;
        assert_eq!(client(POD, NOW), attributed(V4, POD));
        table.lock().unwrap().0.insert(V4, Way::Leaves(OTHER_POD));
        let later = NOW.after(BELIEVED_UNFIT);
        assert_eq!(client(OTHER_POD, later), attributed(V4, OTHER_POD));
        assert_eq!(attribution.attachment(V4), Some(Attachment::to(&OTHER_POD)));
        assert_eq!(client(POD, later), Client::Unattributed(Unattributed::Interface));
    }

    struct Shared(Arc<Mutex<Table>>);

    impl Routes for Shared {
        fn way_to(&mut self, address: IpAddr) -> io::Result<Way> {
            self.0.lock().unwrap().way_to(address)
        }

        fn attachment(&mut self, interface: u32, address: IpAddr) -> io::Result<Option<Attachment>> {
            self.0.lock().unwrap().attachment(interface, address)
        }

        fn behind(&mut self, interface: u32) -> io::Result<Behind> {
            self.0.lock().unwrap().behind(interface)
        }
    }
}
