//! A plan while it is read: blocks, and what they say about the whole.

use crate::config::model::{Block as PlanBlock, Health, Plan, Reload};

use super::directive::{self, Draft};
use super::keys::{self, Key};
use super::syntax::Block;
use crate::config::corefile::position::{Error, Notes, Place};

/// What was read so far.
#[derive(Default)]
pub(super) struct Drafts {
    blocks: Vec<PlanBlock>,
    served: Vec<Served>,
    reload: Option<Reload>,
    health: Vec<Health>,
    prometheus: Vec<std::net::SocketAddr>,
}

/// A zone that is served, for the search of doubles.
struct Served {
    key: Key,
    block: PlanBlock,
}

impl Drafts {
    pub(super) fn add(&mut self, block: &Block, default_port: u16, notes: &mut Notes) {
        let keys = keys::read(&block.keys, default_port, notes);
        let Some(first) = keys.first() else {
            return;
        };
        let mut draft = Draft::new(PlanBlock {
            origin: first.place.origin(),
            port: first.port,
            ..PlanBlock::default()
        });
        for directive in &block.directives {
            let read = directive::read(directive, &mut draft, notes);
            notes.take(read);
        }
        self.note_doubles(&keys, &draft.block, notes);
        self.reload = self.reload_of(&draft, first, notes);
        self.health.extend(draft.health);
        if let Some(address) = draft.prometheus
            && !self.prometheus.contains(&address)
        {
            self.prometheus.push(address);
        }
        self.blocks.extend(split(draft.block, &keys, notes));
    }

    pub(super) fn finish(self, notes: &mut Notes) -> Option<Plan> {
        if self.blocks.is_empty() || !notes.errors.is_empty() {
            return None;
        }
        Some(Plan {
            blocks: self.blocks,
            reload: self.reload,
            health: self.health,
            prometheus: self.prometheus,
        })
    }

    /// The file is one, so the last block that says how often it is looked at says it for all.
    fn reload_of(&self, draft: &Draft, key: &Key, notes: &mut Notes) -> Option<Reload> {
        let said = draft.reload.or(self.reload);
        if self.reload.is_some() && said != self.reload {
            let text = "this block's reload counts, not that of a block above: there is one file";
            notes.warn(&key.place, text);
        }
        said
    }

    /// The same zone on the same port and address twice; a block without `bind` is on every address.
    fn note_doubles(&mut self, keys: &[Key], block: &PlanBlock, notes: &mut Notes) {
        for key in keys {
            let other = self.served.iter().find(|served| served.overlaps(key, block));
            if let Some(other) = other {
                notes.errors.push(double(key, &other.key.place));
            }
            self.served.push(Served {
                key: key.clone(),
                block: block.clone(),
            });
        }
    }
}

impl Served {
    fn overlaps(&self, key: &Key, block: &PlanBlock) -> bool {
        self.key.zone == key.zone && self.key.port == key.port && self.block.shares_address(block)
    }
}

fn double(key: &Key, other: &Place) -> Error {
    Error {
        place: key.place.clone(),
        wrong: format!(
            "the zone {} is served on port {} by the block at {other}, too",
            key.zone, key.port
        ),
        accepted: "each zone once for a port and an address".to_owned(),
    }
}

/// A block serves one port; keys with several ports make several.
fn split(block: PlanBlock, keys: &[Key], notes: &mut Notes) -> Vec<PlanBlock> {
    let mut ports: Vec<u16> = Vec::new();
    for key in keys {
        if !ports.contains(&key.port) {
            if !ports.is_empty() {
                notes.warn(&key.place, "another port: it has a cache and limits of its own");
            }
            ports.push(key.port);
        }
    }
    let of_port = |port: u16| PlanBlock {
        port,
        zones: keys
            .iter()
            .filter(|key| key.port == port)
            .map(|key| key.zone)
            .collect(),
        ..block.clone()
    };
    ports.into_iter().map(of_port).collect()
}
