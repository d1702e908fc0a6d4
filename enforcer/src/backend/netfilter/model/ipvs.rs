//! Whether the node runs IPVS.

/// Whether IPVS is there: its list of Services is, once the module is.
pub(in crate::backend) fn has_ipvs() -> bool {
    std::path::Path::new("/proc/thread-self/net/ip_vs").exists()
}
