//! How much was done, so that tests can say what a change must not cost, whatever the machine.

/// Counts since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Pods whose rules were looked at again.
    pub pods_compiled: usize,
    /// Policies that were filled in for a pod, or taken out of its rules.
    pub policies_filled: usize,
    /// Sets that were asked whether a pod of the cluster is in them.
    pub set_lookups: usize,
    /// Records that were looked at to take answers in, to make room for them, and to say until when an address is open.
    pub record_steps: usize,
}
