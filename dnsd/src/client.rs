//! Who asks. A query is a pod's if the way back to its source address leaves by the interface that it came in by:
//! a pod that writes another's address as its source gains nothing, it is answered at that address and its query is
//! not recorded.

use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use egret_kernel::links::{Attachment, Links};
use egret_shared::switch::{self, Switch};
use egret_shared::time::Timestamp;

use crate::table::HashMap;

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

/// From whose share of what is limited for each client a query is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payer {
    /// From that of an address.
    Address(IpAddr),
    /// From that of all who write addresses as their source that are not to be found behind the interface that they came in
    /// by: were it taken from the address, a pod could use up the shares of others, and have as many as it writes addresses.
    Interface(Option<u32>),
}

impl Payer {
    /// Of a query of this client.
    #[must_use]
    pub fn of(client: Client, source: IpAddr, interface: Option<u32>) -> Self {
        match client {
            _ if switch::is_off(Switch::PayByInterface) => Self::Address(source),
            Client::Attributed(_) | Client::Unattributed(Unattributed::Local) => Self::Address(source),
            Client::Unattributed(Unattributed::Interface | Unattributed::NoRoute | Unattributed::Unknown) => {
                Self::Interface(interface)
            }
        }
    }
}

impl From<IpAddr> for Payer {
    fn from(address: IpAddr) -> Self {
        Self::Address(address)
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
}

/// Attributes queries; look-ups are remembered for a second.
pub struct Attribution(
    /// Held for a look at the map; and once a second for each client while the kernel is asked, so that threads that are asked
    /// by one client at once ask about it once.
    Mutex<Known>,
);

struct Known {
    routes: Box<dyn Routes>,
    ways: HashMap<IpAddr, Seen>,
}

/// What a look-up found.
#[derive(Clone, Copy)]
struct Seen {
    way: Way,
    attachment: Option<Attachment>,
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
        }))
    }

    /// The client of a query from `source` that came in by `interface`.
    pub fn client(&self, source: IpAddr, interface: Option<u32>, now: Timestamp) -> Client {
        // A panic inside leaves a map that is still true.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = known.seen(source, interface, now);
        let attributed = |seen: Seen| {
            Client::Attributed(Asker {
                address: source,
                attachment: seen.attachment,
            })
        };
        match seen.map(|seen| (seen.way, seen)) {
            Err(error) => {
                tracing::debug!(%source, %error, "the route of a client cannot be looked up");
                Client::Unattributed(Unattributed::Unknown)
            }
            Ok((_, seen)) if switch::is_off(Switch::AttributeByInterface) => attributed(seen),
            Ok((Way::Local, _)) => Client::Unattributed(Unattributed::Local),
            Ok((Way::None, _)) => Client::Unattributed(Unattributed::NoRoute),
            Ok((Way::Leaves(way), seen)) if Some(way) == interface => attributed(seen),
            Ok((Way::Leaves(_), _)) => Client::Unattributed(Unattributed::Interface),
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
        let seen = Seen {
            way,
            attachment,
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    #[derive(Default)]
    struct Table(HashMap<IpAddr, Way>);

    impl Routes for Table {
        fn way_to(&mut self, address: IpAddr) -> io::Result<Way> {
            Ok(self.0.get(&address).copied().unwrap_or(Way::None))
        }

        fn attachment(&mut self, interface: u32, _address: IpAddr) -> io::Result<Option<Attachment>> {
            Ok(Some(Attachment::to(&interface)))
        }
    }

    fn attribution() -> Attribution {
        Attribution::new(Box::new(Table(HashMap::from([
            ([10, 0, 0, 1].into(), Way::Leaves(7)),
            ([10, 0, 0, 2].into(), Way::Leaves(8)),
            ([10, 0, 0, 9].into(), Way::Local),
        ]))))
    }

    fn attributed(address: [u8; 4], interface: u32) -> Client {
        Client::Attributed(Asker {
            address: address.into(),
            attachment: Some(Attachment::to(&interface)),
        })
    }

    #[test]
    fn a_query_is_a_pods_only_by_the_pods_own_interface() {
        let attribution = attribution();
        for (source, interface, client) in [
            ([10, 0, 0, 1], Some(7), attributed([10, 0, 0, 1], 7)),
            (
                [10, 0, 0, 2],
                Some(7),
                Client::Unattributed(Unattributed::Interface),
            ),
            ([10, 0, 0, 2], Some(8), attributed([10, 0, 0, 2], 8)),
            ([10, 0, 0, 1], None, Client::Unattributed(Unattributed::Interface)),
            ([10, 0, 0, 9], Some(1), Client::Unattributed(Unattributed::Local)),
            (
                [192, 0, 2, 1],
                Some(7),
                Client::Unattributed(Unattributed::NoRoute),
            ),
        ] {
            for _ in 0..2 {
                assert_eq!(
                    attribution.client(source.into(), interface, NOW),
                    client,
                    "{source:?}"
                );
            }
        }
    }

    #[test]
    fn what_comes_in_anothers_name_is_not_taken_from_the_others_share() {
        let attribution = attribution();
        let [pod, other, host, nobody] = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 9], [192, 0, 2, 1]];
        for (source, interface, payer) in [
            (pod, Some(7), Payer::Address(pod.into())),
            (host, Some(1), Payer::Address(host.into())),
            (other, Some(7), Payer::Interface(Some(7))),
            (nobody, Some(7), Payer::Interface(Some(7))),
            (pod, None, Payer::Interface(None)),
        ] {
            let client = attribution.client(source.into(), interface, NOW);
            assert_eq!(Payer::of(client, source.into(), interface), payer, "{source:?}");
        }
    }

    #[test]
    fn an_address_that_moves_to_another_interface_belongs_to_its_new_pod() {
        let table = Arc::new(Mutex::new(Table(HashMap::from([(
            [10, 0, 0, 1].into(),
            Way::Leaves(7),
        )]))));
        let attribution = Attribution::new(Box::new(Shared(Arc::clone(&table))));
        let pod = [10, 0, 0, 1].into();
        assert_eq!(
            attribution.client(pod, Some(7), NOW),
            attributed([10, 0, 0, 1], 7)
        );
        table.lock().unwrap().0.insert(pod, Way::Leaves(9));
        let later = NOW.after(BELIEVED_UNFIT);
        assert_eq!(
            attribution.client(pod, Some(9), later),
            attributed([10, 0, 0, 1], 9)
        );
        assert_eq!(attribution.attachment(pod), Some(Attachment::to(&9_u32)));
        assert_eq!(
            attribution.client(pod, Some(7), later),
            Client::Unattributed(Unattributed::Interface)
        );
    }

    struct Shared(Arc<Mutex<Table>>);

    impl Routes for Shared {
        fn way_to(&mut self, address: IpAddr) -> io::Result<Way> {
            self.0.lock().unwrap().way_to(address)
        }

        fn attachment(&mut self, interface: u32, address: IpAddr) -> io::Result<Option<Attachment>> {
            self.0.lock().unwrap().attachment(interface, address)
        }
    }
}
