//! How long records live and how many there may be.

use std::net::IpAddr;
use std::time::Duration;

use egret_shared::net::IpNet;
use egret_shared::time::Timestamp;

use super::address_forms::forms;
use super::expired;

/// The fewest addresses that a name must be able to have (NPEP-133: at least 100 for each name, also for
/// each name under a wildcard).
const LEAST_ADDRESSES_PER_NAME: usize = 100;

/// The shortest life of a record: what a kernel set can be given as a timeout.
const LEAST_LIFE: Duration = Duration::from_secs(1);

/// How records are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSettings {
    /// A time to live below this counts as this.
    pub min_ttl: Duration,
    /// A time to live above this counts as this.
    pub max_ttl: Duration,
    /// What every record lives longer than its time to live: programs cache longer (a JVM 30 s).
    pub grace: Duration,
    /// Addresses that a name never opens.
    pub protected: Vec<IpNet>,
    /// What of the cluster itself a name opens.
    pub names_may_open: NamesMayOpen,
    /// How many there may be.
    pub limits: RecordLimits,
}

impl Default for RecordSettings {
    fn default() -> Self {
        Self {
            min_ttl: Duration::ZERO,
            max_ttl: Duration::from_secs(24 * 60 * 60),
            grace: Duration::from_secs(30),
            protected: usually_protected(),
            names_may_open: NamesMayOpen::NOTHING,
            limits: RecordLimits::default(),
        }
    }
}

/// What of the cluster itself a name may open; an address that is several of these needs all. Addresses of other Services
/// are never opened: connections are judged behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamesMayOpen {
    /// Addresses of nodes, in their status or in a NodeAddressReport.
    pub node: bool,
    /// Where the API server is reached: its Service, its endpoints, and what is declared.
    pub api_server: bool,
}

impl NamesMayOpen {
    /// Neither.
    pub const NOTHING: Self = Self {
        node: false,
        api_server: false,
    };
}

/// Loopback, link-local and the metadata services of clouds: whoever answers questions must not open them.
const USUALLY_PROTECTED: [&str; 10] = [
    "127.0.0.0/8",
    "169.254.0.0/16",
    "::1/128",
    "fe80::/10",
    // AWS: instance metadata, and the credentials of EKS Pod Identity.
    "fd00:ec2::254/128",
    "fd00:ec2::23/128",
    // Azure: WireServer.
    "168.63.129.16/32",
    // Alibaba Cloud.
    "100.100.100.200/32",
    // Oracle Cloud.
    "192.0.0.192/32",
    // Google Cloud.
    "fd20:ce::254/128",
];

/// What is protected where nothing else is configured.
///
/// # Panics
/// Never: these are networks.
#[must_use]
pub fn usually_protected() -> Vec<IpNet> {
    USUALLY_PROTECTED
        .map(|network| network.parse().expect("these are networks"))
        .to_vec()
}

/// How many records there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLimits {
    /// Names that one pod asked for.
    pub names_per_pod: usize,
    /// Addresses of one name for one pod; less than 100 counts as 100.
    pub addresses_per_name: usize,
    /// Records of all pods together.
    pub total: usize,
}

impl Default for RecordLimits {
    fn default() -> Self {
        Self {
            names_per_pod: 1000,
            addresses_per_name: 1000,
            total: 200_000,
        }
    }
}

impl RecordLimits {
    /// How many may have to be kept for a later life: live ones, and such as are over.
    #[must_use]
    pub const fn remembered(&self) -> usize {
        self.total.saturating_add(expired::MOST)
    }

    pub(super) fn addresses_per_name(&self) -> usize {
        self.addresses_per_name.max(LEAST_ADDRESSES_PER_NAME)
    }
}

impl RecordSettings {
    /// Whether no name opens this address, in this form or as the IPv4 address that it stands for.
    #[must_use]
    pub fn is_protected(&self, address: IpAddr) -> bool {
        let is_in = |address| self.protected.iter().any(|network| network.contains(&address));
        forms(address).any(is_in)
    }

    /// Until when a record lives whose time to live ends at `expires`; none when that is over already.
    ///
    /// What dnsd tells a second time may be past its time to live and still within the grace: it then
    /// ends when it would have ended, so telling again never makes it live longer.
    pub(super) fn lifetime(&self, expires: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let end = if expires > now {
            expires.max(now.after(self.min_ttl)).min(now.after(self.max_ttl))
        } else {
            expires.after(self.min_ttl.min(self.max_ttl))
        };
        let until = end.after(self.grace).max(expires.min(now).after(LEAST_LIFE));
        (until > now).then_some(until)
    }
}
