//! Zones with NXDOMAIN cuts.

use super::Zone;

/// A zone with NXDOMAIN cuts (RFC 8020).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutZone {
    /// The zone.
    pub zone: Zone,
    /// Its kind.
    pub kind: ZoneKind,
}

/// The kind of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneKind {
    /// A cluster's zone: `svc` of it holds namespaces.
    Cluster,
    /// Configured: its servers deny no empty non-terminals.
    Named,
    /// A cloud's zone in the host's search list: it has no names below public top-level labels.
    Searched,
}
