//! Whose rules name a set. Most sets have one user or two, so they are a list in order: the smallest map has room for
//! eleven.

use super::SetUser;
use crate::compiler::set_use::SetUse;

/// Users with how they use a set, in order.
#[derive(Debug, Default)]
pub(super) struct SetUsers(Vec<(SetUser, SetUse)>);

impl SetUsers {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// A user uses the set like this now.
    pub(super) fn insert(&mut self, user: &SetUser, used: &SetUse) {
        match self.place(user) {
            Ok(place) => {
                if let Some((_, before)) = self.0.get_mut(place) {
                    before.clone_from(used);
                }
            }
            Err(place) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1);
                }
                self.0.insert(place, (user.clone(), used.clone()));
            }
        }
    }

    pub(super) fn remove(&mut self, user: &SetUser) {
        if let Ok(place) = self.place(user) {
            self.0.remove(place);
        }
    }

    pub(super) fn contains(&self, user: &SetUser) -> bool {
        self.place(user).is_ok()
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SetUser, &SetUse)> {
        self.0.iter().map(|(user, used)| (user, used))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &SetUser> {
        self.0.iter().map(|(user, _)| user)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &SetUse> {
        self.0.iter().map(|(_, used)| used)
    }

    fn place(&self, user: &SetUser) -> Result<usize, usize> {
        self.0.binary_search_by(|(one, _)| one.cmp(user))
    }
}
