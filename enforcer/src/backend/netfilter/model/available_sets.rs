//! The sets that rules may refer to, and the families in which they exist.

use std::collections::BTreeMap;

use egret_kernel::Family;
use egret_policies::rules::{SetId, SetKind};

/// All of them.
pub type AvailableSets = BTreeMap<SetId, Available>;

/// A set that the kernel holds as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// What it holds.
    pub kind: SetKind,
    /// Where it is.
    pub families: Families,
}

/// The families in which the kernel holds a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Families {
    /// Members of either may come.
    Both,
    /// It has members of this one, and never gets one of the other: there it stands for nobody.
    Only(Family),
}

impl Families {
    /// Whether it is there in a family.
    #[must_use]
    pub fn has(self, family: Family) -> bool {
        match self {
            Self::Both => true,
            Self::Only(only) => only == family,
        }
    }

    /// Those in which it is.
    pub fn all(self) -> impl Iterator<Item = Family> {
        Family::ALL.into_iter().filter(move |family| self.has(*family))
    }
}

impl From<SetKind> for Available {
    fn from(kind: SetKind) -> Self {
        Self {
            kind,
            families: Families::Both,
        }
    }
}
