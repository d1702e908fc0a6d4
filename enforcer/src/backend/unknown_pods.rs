//! Whether pods are closed that nobody knows yet ([decision 11](../../../docs/decisions/0011-unknown-pods.md)).

/// Whether unknown pods are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// Always.
    Deny,
    /// As soon as the cluster has any policy, and as long as it is not known whether it has.
    DenyOncePolicies,
    /// Never.
    Allow,
}

impl Stance {
    /// Whether they are closed where the cluster has policies, has none, or may have some.
    #[must_use]
    pub fn closes(self, has_policies: Option<bool>) -> bool {
        match self {
            Self::Deny => true,
            Self::DenyOncePolicies => has_policies.unwrap_or(true),
            Self::Allow => false,
        }
    }
}
