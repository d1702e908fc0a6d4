//! Identifies the client of a query. A query is a pod's if the route to its source address leaves by the interface that it
//! came in by (a strict reverse path check). A query with another client's address is not answered: the answer would go to
//! that client. What comes in by a pod's interface is counted against that pod, whatever its source address.

use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use egret_kernel::links::{Attachment, Links};
use egret_shared::time::Timestamp;

use crate::hash::HashMap;
use crate::limits::quota_key::QuotaKey;

/// How long a looked-up route is cached.
const ROUTE_TTL: Duration = Duration::from_secs(1);
/// How long it is cached for queries that came in by another interface: a flood of spoofed queries costs one look-up in this
/// time.
const MISMATCH_TTL: Duration = Duration::from_millis(50);
/// Addresses whose routes are cached; above it the cache is emptied.
const MAX_CACHED: usize = 16_384;

/// The client of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A pod, or another host behind an interface of its own.
    Identified(ClientId),
    /// A client for which no record can be kept.
    Unidentified(Unidentified),
}

/// The identity of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId {
    /// Its address.
    pub address: IpAddr,
    /// What the address is attached to: an address is reused, and its next owner is another client. `None` where it is
    /// unknown.
    pub attachment: Option<Attachment>,
}

/// Why a client is not identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unidentified {
    /// It comes from this host.
    Local,
    /// It came in by another interface than the route to its source leaves by.
    Interface,
    /// There is no route to its source.
    NoRoute,
    /// The kernel did not say.
    Unknown,
}

labels! {
    Unidentified: Local => "local", Interface => "interface", NoRoute => "no_route", Unknown => "unknown"
}

/// What is known of the sender of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The client.
    pub client: Client,
    /// The key of its limits.
    pub quota_key: QuotaKey,
    /// Whether the source address is certainly not the sender's: its owner must not get the answer.
    pub is_forged: bool,
    /// Of a pod behind an interface of its own: how long that is believed without another look-up.
    pub pod_until: Option<Timestamp>,
}

/// What is behind an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterfaceRole {
    /// This node: `lo`, and interfaces without a peer (`dummy`, `ifb`).
    Local,
    /// One pod: a veth or netkit into another network namespace.
    Pod,
    /// Pods: a bridge all of whose ports are such interfaces.
    PodBridge,
    /// A veth both ends of which are in this namespace: another program forwards packets, so the route says nothing about
    /// the sender (`cilium_host`).
    Relay,
    /// Any hosts.
    Other,
}

impl InterfaceRole {
    /// Whether all addresses used behind the interface are routed to it.
    const fn has_routed_addresses_only(self) -> bool {
        match self {
            Self::Pod | Self::PodBridge => true,
            Self::Local | Self::Relay | Self::Other => false,
        }
    }
}

/// The route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The address is this host's own.
    Local,
    /// It leaves by the interface with this index.
    Interface(u32),
    /// There is no route.
    Unreachable,
}

/// A routing table: the kernel's, or a test's.
pub trait Routes: Send {
    /// The route to an address.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn route_to(&mut self, address: IpAddr) -> io::Result<Route>;

    /// What an address is attached to that is reached by the interface with this index.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn attachment(&mut self, interface: u32, address: IpAddr) -> io::Result<Option<Attachment>>;

    /// What is behind the interface with this index.
    ///
    /// # Errors
    /// When the kernel does not say.
    fn role(&mut self, interface: u32) -> io::Result<InterfaceRole>;
}

impl Routes for Links {
    fn route_to(&mut self, address: IpAddr) -> io::Result<Route> {
        let route = self.route_to(address).map_err(io::Error::other)?;
        Ok(match route {
            Some(route) if route.is_local => Route::Local,
            Some(route) => Route::Interface(route.interface),
            None => Route::Unreachable,
        })
    }

    fn attachment(&mut self, interface: u32, address: IpAddr) -> io::Result<Option<Attachment>> {
        Self::attachment(self, interface, address).map_err(io::Error::other)
    }

    fn role(&mut self, interface: u32) -> io::Result<InterfaceRole> {
        if interface == LOOPBACK {
            return Ok(InterfaceRole::Local);
        }
        let Some(link) = self.interface_by_index(interface).map_err(io::Error::other)? else {
            return Ok(InterfaceRole::Other);
        };
        Ok(match link.kind.as_deref() {
            _ if Attachment::to_cable(&link).is_some() => InterfaceRole::Pod,
            Some("veth" | "netkit") => InterfaceRole::Relay,
            Some("dummy" | "ifb") => InterfaceRole::Local,
            Some("bridge") => {
                let all = self.interfaces().map_err(io::Error::other)?;
                let mut ports = all
                    .iter()
                    .filter(|port| port.master == Some(interface))
                    .peekable();
                match ports.peek().is_some() && ports.all(|port| Attachment::to_cable(port).is_some()) {
                    true => InterfaceRole::PodBridge,
                    false => InterfaceRole::Other,
                }
            }
            Some(_) | None => InterfaceRole::Other,
        })
    }
}

/// `LOOPBACK_IFINDEX`, in every namespace.
const LOOPBACK: u32 = 1;

/// Identifies clients; look-ups are cached for a second.
pub struct ClientLookup(
    /// Held for one map operation, and once a second for each client while the kernel is asked: threads that serve one
    /// client at once ask the kernel once.
    Mutex<RouteCache>,
);

struct RouteCache {
    routes: Box<dyn Routes>,
    by_address: HashMap<IpAddr, CachedRoute>,
    interfaces: HashMap<u32, (InterfaceRole, Timestamp)>,
}

/// The result of a look-up.
#[derive(Clone, Copy)]
struct CachedRoute {
    route: Route,
    attachment: Option<Attachment>,
    /// The role of the interface by which the route leaves.
    role: InterfaceRole,
    at: Timestamp,
}

impl std::fmt::Debug for ClientLookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientLookup").finish_non_exhaustive()
    }
}

impl ClientLookup {
    /// Looks up in this table.
    #[must_use]
    pub fn new(routes: Box<dyn Routes>) -> Self {
        Self(Mutex::new(RouteCache {
            routes,
            by_address: HashMap::default(),
            interfaces: HashMap::default(),
        }))
    }

    /// Identifies the sender of a query from `source` that came in by `interface`.
    pub fn identify(&self, source: IpAddr, interface: Option<u32>, now: Timestamp) -> Identity {
        // A panic while the lock is held leaves the cache consistent.
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match cache.identify(source, interface, now) {
            Ok(identity) => identity,
            Err(error) => {
                tracing::debug!(%source, %error, "the route of a client cannot be looked up");
                Identity {
                    client: Client::Unidentified(Unidentified::Unknown),
                    quota_key: QuotaKey::new(interface, None),
                    is_forged: false,
                    pod_until: None,
                }
            }
        }
    }

    /// What an address is attached to now; `None` where it is unknown.
    pub fn attachment(&self, address: IpAddr) -> Option<Attachment> {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let route = cache.routes.route_to(address);
        cache.attachment(address, *route.as_ref().unwrap_or(&Route::Unreachable))
    }
}

impl RouteCache {
    fn identify(&mut self, source: IpAddr, interface: Option<u32>, now: Timestamp) -> io::Result<Identity> {
        let cached = self.cached(source, interface, now)?;
        let attributed = Client::Identified(ClientId {
            address: source,
            attachment: cached.attachment,
        });
        let fits = matches!(cached.route, Route::Interface(route) if Some(route) == interface);
        let role = match interface {
            _ if fits => cached.role,
            Some(interface) => self.role(interface, now)?,
            None => InterfaceRole::Other,
        };
        // For IPv6 packets that this node sends to itself, the kernel reports the interface that has the destination address
        // (`ip6_rcv_core`), not `lo`.
        let is_local = cached.route == Route::Local && !role.has_routed_addresses_only();
        let client = match cached.route {
            Route::Unreachable => Client::Unidentified(Unidentified::NoRoute),
            Route::Local if is_local => Client::Unidentified(Unidentified::Local),
            Route::Interface(_) if fits => attributed,
            Route::Local | Route::Interface(_) => Client::Unidentified(Unidentified::Interface),
        };
        Ok(Identity {
            client,
            quota_key: quota_key(source, interface, role, fits || is_local),
            is_forged: client == Client::Unidentified(Unidentified::Interface)
                && is_forged(role, interface, cached),
            pod_until: (fits && role == InterfaceRole::Pod).then(|| cached.at.after(ROUTE_TTL)),
        })
    }

    /// The role of an interface, cached for a second: an index is reused.
    fn role(&mut self, interface: u32, now: Timestamp) -> io::Result<InterfaceRole> {
        if let Some((role, at)) = self.interfaces.get(&interface)
            && now < at.after(ROUTE_TTL)
        {
            return Ok(*role);
        }
        let role = self.routes.role(interface)?;
        if self.interfaces.len() >= MAX_CACHED {
            self.interfaces.clear();
        }
        self.interfaces.insert(interface, (role, now));
        Ok(role)
    }

    /// The route to a source. One by another interface is looked up again soon: the pod may be new.
    fn cached(&mut self, source: IpAddr, interface: Option<u32>, now: Timestamp) -> io::Result<CachedRoute> {
        if let Some(cached) = self.by_address.get(&source) {
            let fits = matches!(cached.route, Route::Interface(index) if Some(index) == interface);
            let lifetime = if fits { ROUTE_TTL } else { MISMATCH_TTL };
            if now < cached.at.after(lifetime) {
                return Ok(*cached);
            }
        }
        let route = self.routes.route_to(source)?;
        let attachment = self.attachment(source, route);
        let role = match route {
            Route::Local => InterfaceRole::Local,
            Route::Interface(interface) => self.role(interface, now)?,
            Route::Unreachable => InterfaceRole::Other,
        };
        let cached = CachedRoute {
            route,
            attachment,
            role,
            at: now,
        };
        if self.by_address.len() >= MAX_CACHED {
            self.by_address.clear();
        }
        self.by_address.insert(source, cached);
        Ok(cached)
    }

    fn attachment(&mut self, address: IpAddr, route: Route) -> Option<Attachment> {
        let Route::Interface(interface) = route else {
            return None;
        };
        match self.routes.attachment(interface, address) {
            Ok(attachment) => attachment,
            Err(error) => {
                tracing::debug!(%address, %error, "the attachment of a client cannot be looked up");
                None
            }
        }
    }
}

/// The quota key of a query by the interface it came in by. A source that is not found there is nobody's: all such share one key.
fn quota_key(source: IpAddr, interface: Option<u32>, role: InterfaceRole, is_found: bool) -> QuotaKey {
    let address = match role {
        InterfaceRole::Pod | InterfaceRole::Local => None,
        InterfaceRole::PodBridge | InterfaceRole::Relay | InterfaceRole::Other => {
            Some(source).filter(|_| is_found)
        }
    };
    QuotaKey::new(interface, address)
}

/// Whether a source address that is routed elsewhere is certainly not the sender's: where a pod of this node is at either end,
/// since pods have one route. Between other interfaces routes may be asymmetric.
const fn is_forged(role: InterfaceRole, interface: Option<u32>, cached: CachedRoute) -> bool {
    match (role, cached.role) {
        (InterfaceRole::Relay | InterfaceRole::Local, _) | (_, InterfaceRole::Relay) => false,
        _ => {
            interface.is_some()
                && (role.has_routed_addresses_only() || cached.role.has_routed_addresses_only())
        }
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

    struct Table(HashMap<IpAddr, Route>);

    impl Default for Table {
        fn default() -> Self {
            Self(HashMap::from([
                (V4, Route::Interface(POD)),
                (V6, Route::Interface(POD)),
                (OTHER, Route::Interface(OTHER_POD)),
                (BRIDGED, Route::Interface(BRIDGE)),
                (FAR, Route::Interface(UPLINK)),
                (FARTHER, Route::Interface(SECOND_UPLINK)),
                (RELAYED, Route::Interface(RELAY)),
                (NODE, Route::Local),
            ]))
        }
    }

    impl Routes for Table {
        fn route_to(&mut self, address: IpAddr) -> io::Result<Route> {
            Ok(self.0.get(&address).copied().unwrap_or(Route::Unreachable))
        }

        fn attachment(&mut self, interface: u32, _address: IpAddr) -> io::Result<Option<Attachment>> {
            Ok(Some(Attachment::to(&interface)))
        }

        fn role(&mut self, interface: u32) -> io::Result<InterfaceRole> {
            Ok(match interface {
                LO | DUMMY => InterfaceRole::Local,
                RELAY => InterfaceRole::Relay,
                BRIDGE => InterfaceRole::PodBridge,
                POD | OTHER_POD => InterfaceRole::Pod,
                _uplink => InterfaceRole::Other,
            })
        }
    }

    fn identify(source: IpAddr, interface: Option<u32>) -> Identity {
        let client_lookup = ClientLookup::new(Box::<Table>::default());
        let first = client_lookup.identify(source, interface, NOW);
        assert_eq!(
            client_lookup.identify(source, interface, NOW),
            first,
            "remembered"
        );
        first
    }

    fn attributed(address: IpAddr, interface: u32) -> Client {
        Client::Identified(ClientId {
            address,
            attachment: Some(Attachment::to(&interface)),
        })
    }

    #[test]
    fn a_query_belongs_to_a_pod_only_by_the_pods_interface() {
        for (source, interface, client) in [
            (V4, Some(POD), attributed(V4, POD)),
            (OTHER, Some(POD), Client::Unidentified(Unidentified::Interface)),
            (OTHER, Some(OTHER_POD), attributed(OTHER, OTHER_POD)),
            (V4, None, Client::Unidentified(Unidentified::Interface)),
            (NODE, Some(LO), Client::Unidentified(Unidentified::Local)),
            (NODE, Some(DUMMY), Client::Unidentified(Unidentified::Local)),
            (NODE, Some(POD), Client::Unidentified(Unidentified::Interface)),
            (NODE, Some(BRIDGE), Client::Unidentified(Unidentified::Interface)),
            (NOBODY, Some(POD), Client::Unidentified(Unidentified::NoRoute)),
        ] {
            assert_eq!(
                identify(source, interface).client,
                client,
                "{source} by {interface:?}"
            );
        }
    }

    #[test]
    fn everything_from_a_pods_interface_has_that_pods_quota_key() {
        for source in [V4, V6, OTHER, NODE, FAR, NOBODY] {
            assert_eq!(
                identify(source, Some(POD)).quota_key,
                QuotaKey::behind(POD, None),
                "{source}"
            );
        }
        for (source, interface, quota_key) in [
            (OTHER, OTHER_POD, QuotaKey::behind(OTHER_POD, None)),
            (NODE, LO, QuotaKey::behind(LO, None)),
            (BRIDGED, BRIDGE, QuotaKey::behind(BRIDGE, Some(BRIDGED))),
            (FAR, UPLINK, QuotaKey::behind(UPLINK, Some(FAR))),
            // Whoever writes addresses that are not behind a common interface has one share with others who do.
            (OTHER, BRIDGE, QuotaKey::behind(BRIDGE, None)),
            (FARTHER, UPLINK, QuotaKey::behind(UPLINK, None)),
            (NOBODY, UPLINK, QuotaKey::behind(UPLINK, None)),
        ] {
            assert_eq!(
                identify(source, Some(interface)).quota_key,
                quota_key,
                "{source} by {interface}"
            );
        }
    }

    #[test]
    fn the_source_of_another_pod_or_the_node_is_forged_and_an_asymmetric_route_is_not() {
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
        let client_lookup = ClientLookup::new(Box::new(Shared(Arc::clone(&table))));
        let client = |interface, now| client_lookup.identify(V4, Some(interface), now).client;
        assert_eq!(client(POD, NOW), attributed(V4, POD));
        table.lock().unwrap().0.insert(V4, Route::Interface(OTHER_POD));
        let later = NOW.after(MISMATCH_TTL);
        assert_eq!(client(OTHER_POD, later), attributed(V4, OTHER_POD));
        assert_eq!(client_lookup.attachment(V4), Some(Attachment::to(&OTHER_POD)));
        assert_eq!(client(POD, later), Client::Unidentified(Unidentified::Interface));
    }

    struct Shared(Arc<Mutex<Table>>);

    impl Routes for Shared {
        fn route_to(&mut self, address: IpAddr) -> io::Result<Route> {
            self.0.lock().unwrap().route_to(address)
        }

        fn attachment(&mut self, interface: u32, address: IpAddr) -> io::Result<Option<Attachment>> {
            self.0.lock().unwrap().attachment(interface, address)
        }

        fn role(&mut self, interface: u32) -> io::Result<InterfaceRole> {
            self.0.lock().unwrap().role(interface)
        }
    }
}
